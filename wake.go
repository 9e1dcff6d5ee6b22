package outbox

import "sync"

// wakes tells forwarders in this process that a transaction with messages was committed.
type wakes struct {
	mu        sync.Mutex
	listeners map[*func()]string // value: the outbox table
}

// OnCommit has fn called after each commit, made through this DB, that wrote to the given outbox table
// (schema.Names.OutboxName). fn must not block. The function returned ends that. Package forwarder uses it.
func (db *DB) OnCommit(outbox string, fn func()) (stop func()) {
	w := &db.wakes
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listeners == nil {
		w.listeners = map[*func()]string{}
	}
	id := &fn
	w.listeners[id] = outbox
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.listeners, id)
	}
}

func (db *DB) committed(outbox string) {
	db.wakes.mu.Lock()
	defer db.wakes.mu.Unlock()
	for fn, table := range db.wakes.listeners {
		if table == outbox {
			(*fn)()
		}
	}
}
