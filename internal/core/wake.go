package core

import (
	"context"
	"sync"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	// notifyInterval is the shortest time between two notifications of one table. A NOTIFY inside
	// each transaction would take a global lock at its commit.
	notifyInterval = 10 * time.Millisecond
	notifyTimeout  = 2 * time.Second
)

// wakes tells forwarders and dispatchers that a transaction with messages was committed: those in this process through
// memory, those in other ones through a NOTIFY of its own, coalesced and outside the transaction. Both
// are only hints; whoever misses one polls.
type wakes struct {
	channel string // "" = nobody is notified

	mu        sync.Mutex
	listeners map[*func()]bool
	sending   bool
	again     bool // a notification waits to be sent
}

// OnCommit has fn called after each commit of messages, made through this handle. fn must not block. The function
// returned ends that.
func (db *DB) OnCommit(fn func()) (stop func()) {
	w := &db.wakes
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listeners == nil {
		w.listeners = map[*func()]bool{}
	}
	id := &fn
	w.listeners[id] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.listeners, id)
	}
}

// Listen calls fn for each notification that another handle sent, and once when it has begun to listen, until ctx is
// over or the connection breaks; it returns why it ended. It opens a connection of its own, which is never in a
// transaction. It may return drive.ErrNoListen.
func (db *DB) Listen(ctx context.Context, fn func()) error {
	if err := db.Check(); err != nil {
		return err
	}
	return db.pool.Listen(ctx, db.tables.Channel(), func(sender string) {
		if sender != db.id {
			fn()
		}
	})
}

// Wake is outbox.DB's.
func (db *DB) Wake() {
	if db.Check() != nil {
		return
	}
	w := &db.wakes
	w.mu.Lock()
	defer w.mu.Unlock()
	for fn := range w.listeners {
		(*fn)()
	}
	switch {
	case w.channel == "":
	case w.sending:
		w.again = true
	default:
		w.sending = true
		go db.notify()
	}
}

// WakeLater wakes after the commit of the transaction in ctx, or now if there is none. A transaction of WithTx is committed by
// somebody else, who wakes as well.
func (db *DB) WakeLater(ctx context.Context) {
	if s := scopeFrom(ctx); s != nil {
		_ = s.use(func() error { s.tx.wroteTo(db); return nil }) // one that has ended wakes nobody
		return
	}
	db.Wake()
}

// notify sends a notification at once, and another after a pause if there were commits meanwhile.
func (db *DB) notify() {
	w := &db.wakes
	for again := true; again; {
		ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
		_, _ = db.pool.Exec(ctx, sqltext.Notify, w.channel, db.id) // a hint that is lost costs a poll interval
		cancel()
		time.Sleep(notifyInterval)

		w.mu.Lock()
		again = w.again
		w.again, w.sending = false, again
		w.mu.Unlock()
	}
}
