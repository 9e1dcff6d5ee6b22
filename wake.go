package outbox

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrNoListen is returned by Listen where notifications do not arrive: on a DB of FromSQL, because database/sql has
// none, and behind a pooler such as PgBouncer, whose sessions are not tied to a connection.
var ErrNoListen = errors.New("outbox: no notifications here; forwarders poll")

const (
	// notifyInterval is the shortest time between two notifications of one table. A NOTIFY inside
	// each transaction would take a global lock at its commit.
	notifyInterval = 10 * time.Millisecond
	notifyTimeout  = 2 * time.Second

	notify = `SELECT pg_notify($1, $2)`
)

// wakes tells forwarders that a transaction with messages was committed: those in this process through
// memory, those in other ones through a NOTIFY of its own, coalesced and outside the transaction. Both
// are only hints; a forwarder that misses one polls.
type wakes struct {
	mu        sync.Mutex
	listeners map[*func()]string // value: the outbox table
	channels  map[string]bool    // to notify; true while a notification waits to be sent
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

// Listen calls fn for each notification of a channel (schema.Names.Channel) that another DB sent, and once when it
// has begun to listen, until ctx is over or the connection breaks; it returns why it ended. It opens a connection of its
// own, which is never in a transaction. It may return ErrNoListen.
func (db *DB) Listen(ctx context.Context, channel string, fn func()) error {
	if err := db.Check(); err != nil {
		return err
	}
	return db.backend.listen(ctx, channel, func(sender string) {
		if sender != db.id {
			fn()
		}
	})
}

// committed wakes the forwarders of a table. No channel means that nobody is to be notified.
func (db *DB) committed(table, channel string) {
	w := &db.wakes
	w.mu.Lock()
	defer w.mu.Unlock()
	for fn, t := range w.listeners {
		if t == table {
			(*fn)()
		}
	}
	if channel == "" {
		return
	}
	if _, sending := w.channels[channel]; sending {
		w.channels[channel] = true
		return
	}
	if w.channels == nil {
		w.channels = map[string]bool{}
	}
	w.channels[channel] = false
	go db.notify(channel)
}

// notify sends a notification at once, and another after a pause if there were commits meanwhile.
func (db *DB) notify(channel string) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
		_, _ = db.backend.Exec(ctx, notify, channel, db.id) // a hint that is lost costs a poll interval
		cancel()
		time.Sleep(notifyInterval)

		w := &db.wakes
		w.mu.Lock()
		again := w.channels[channel]
		w.channels[channel] = false
		if !again {
			delete(w.channels, channel)
		}
		w.mu.Unlock()
		if !again {
			return
		}
	}
}
