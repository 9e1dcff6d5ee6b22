package core

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	// notifyInterval is the shortest time between two notifications of one table. A NOTIFY inside
	// a transaction would keep a global lock while it is committed.
	notifyInterval = 10 * time.Millisecond
	notifyTimeout  = 2 * time.Second
)

// wakes tells forwarders and dispatchers that a transaction with messages was committed: those in this process through
// memory, those in other ones through a NOTIFY. The first one in a while follows COMMIT in its round trip; those of the
// next moment are coalesced into one of their own. Both are only hints; a forwarder that misses one polls.
type wakes struct {
	channel string // "" = no notifications

	mu        sync.Mutex
	listeners map[*func(News)]bool
	last      time.Time // when a notification was sent
	sending   bool
	waiting   News // for a notification to be sent
}

// due says whether a notification may be sent at once; the caller does it.
func (w *wakes) due() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.channel == "" || w.sending || time.Since(w.last) < notifyInterval {
		return false
	}
	w.last = time.Now()
	return true
}

// OnCommit has fn called after each commit of messages, made through this handle, and told of what. fn must not block.
// The function returned ends that.
func (db *DB) OnCommit(fn func(News)) (stop func()) {
	w := &db.wakes
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listeners == nil {
		w.listeners = map[*func(News)]bool{}
	}
	id := &fn
	w.listeners[id] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.listeners, id)
	}
}

// Listen calls fn for each notification that another handle sent, and once with all news when it has begun to listen,
// until ctx is over or the connection breaks; it returns why it ended. It opens a connection of its own, which is never
// in a transaction. It may return drive.ErrNoListen.
func (db *DB) Listen(ctx context.Context, fn func(News)) error {
	if err := db.Check(); err != nil {
		return err
	}
	return db.pool.Listen(ctx, db.tables.Channel(), func(payload string) {
		if sender, news := newsOf(payload); sender != db.id {
			fn(news)
		}
	})
}

// Hear sends a notification and returns nil when it has arrived on a connection of its own. Other listeners look once
// for messages. It may return drive.ErrNoListen.
func (db *DB) Hear(ctx context.Context) error {
	if err := db.Check(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	token, heard := uuid.NewString(), false
	var failed error
	err := db.pool.Listen(ctx, db.tables.Channel(), func(payload string) {
		switch payload {
		case "":
			if _, failed = db.pool.Exec(ctx, sqltext.Notify, db.tables.Channel(), token); failed != nil {
				cancel()
			}
		case token:
			heard = true
			cancel()
		}
	})
	switch {
	case heard:
		return nil
	case failed != nil:
		return failed
	}
	return err
}

// Wake is outbox.DB's.
func (db *DB) Wake() {
	if db.Check() == nil {
		db.wake(AllNews, false)
	}
}

// wake wakes those in this process, and those in others unless they are notified already.
func (db *DB) wake(news News, notified bool) {
	w := &db.wakes
	w.mu.Lock()
	defer w.mu.Unlock()
	for fn := range w.listeners {
		(*fn)(news)
	}
	if notified || w.channel == "" {
		return
	}
	if w.waiting = w.waiting.and(news); !w.sending {
		w.sending = true
		go db.notify()
	}
}

// WakeLater wakes after the commit of the transaction in ctx, or now if there is none. A transaction of WithTx is
// committed by other code, which wakes as well.
func (db *DB) WakeLater(ctx context.Context, news News) {
	if s := scopeFrom(ctx); s != nil {
		_ = s.use(func() error { s.tx.wroteTo(db, news); return nil }) // one that has ended wakes none
		return
	}
	db.wake(news, false)
}

// notify sends a notification when the last one is long enough ago, and another if there were commits meanwhile.
func (db *DB) notify() {
	w := &db.wakes
	for again := true; again; {
		w.mu.Lock()
		pause := notifyInterval - time.Since(w.last)
		w.mu.Unlock()
		time.Sleep(pause)

		w.mu.Lock()
		payload := w.waiting.payload(db.id)
		w.last, w.waiting = time.Now(), News{} // what is committed from here on may be missed by those that hear this one
		w.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
		_, _ = db.pool.Exec(ctx, sqltext.Notify, w.channel, payload) // a hint that is lost costs a poll interval
		cancel()

		w.mu.Lock()
		again = w.waiting.Outbox || w.waiting.Queue
		w.sending = again
		w.mu.Unlock()
	}
}
