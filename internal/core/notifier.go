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

// notifier wakes forwarders and dispatchers after a transaction with messages was committed: in this process directly,
// in other processes with NOTIFY. The first NOTIFY after a pause is sent in the round trip of COMMIT; later ones are
// coalesced. Notifications are only hints: a forwarder that misses one polls.
type notifier struct {
	channel string // "" = no notifications

	mu        sync.Mutex
	listeners map[*func(Notification)]bool
	last      time.Time // when a notification was sent
	sending   bool
	waiting   Notification // sends the next notification
}

// due reports whether a notification may be sent now; if so it counts as sent, and the caller must send it.
func (w *notifier) due() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.channel == "" || w.sending || time.Since(w.last) < notifyInterval {
		return false
	}
	w.last = time.Now()
	return true
}

// OnCommit calls fn after each commit of messages through this handle, until stop is called. fn must not block.
func (db *DB) OnCommit(fn func(Notification)) (stop func()) {
	w := &db.notifier
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listeners == nil {
		w.listeners = map[*func(Notification)]bool{}
	}
	id := &fn
	w.listeners[id] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.listeners, id)
	}
}

// Listen calls fn for each notification from another handle, and once with AllNotification when it begins to listen. It
// uses its own connection until ctx is done or the connection breaks, and returns the reason. It may return
// drive.ErrNoListen.
func (db *DB) Listen(ctx context.Context, fn func(Notification)) error {
	if err := db.Check(); err != nil {
		return err
	}
	return db.pool.Listen(ctx, db.tables.Channel(), func(payload string) {
		if sender, n := parseNotification(payload); sender != db.id {
			fn(n)
		}
	})
}

// CheckNotify tests notifications: it sends one and returns nil once it arrives on a separate connection. It makes
// other listeners poll once. It may return drive.ErrNoListen.
func (db *DB) CheckNotify(ctx context.Context) error {
	if err := db.Check(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	token, received := uuid.NewString(), false
	var failed error
	err := db.pool.Listen(ctx, db.tables.Channel(), func(payload string) {
		switch payload {
		case "":
			if _, failed = db.pool.Exec(ctx, sqltext.Notify, db.tables.Channel(), token); failed != nil {
				cancel()
			}
		case token:
			received = true
			cancel()
		}
	})
	switch {
	case received:
		return nil
	case failed != nil:
		return failed
	}
	return err
}

// Wake is outbox.DB.Wake.
func (db *DB) Wake() {
	if db.Check() == nil {
		db.wake(AllNotification, false)
	}
}

// wake wakes the listeners of this process, and listeners of other processes unless they were already notified.
func (db *DB) wake(n Notification, notified bool) {
	w := &db.notifier
	w.mu.Lock()
	defer w.mu.Unlock()
	for fn := range w.listeners {
		(*fn)(n)
	}
	if notified || w.channel == "" {
		return
	}
	if w.waiting = w.waiting.and(n); !w.sending {
		w.sending = true
		go db.notify()
	}
}

// WakeLater wakes listeners after the transaction of ctx commits, or now if ctx has no transaction. For a transaction
// of WithTx, the code that commits it wakes them too.
func (db *DB) WakeLater(ctx context.Context, n Notification) {
	if s := scopeFrom(ctx); s != nil {
		_ = s.use(func() error { s.tx.wroteTo(db, n); return nil }) // a transaction that has ended wakes nobody
		return
	}
	db.wake(n, false)
}

// notify sends a notification notifyInterval after the last one, and another if there were commits meanwhile.
func (db *DB) notify() {
	w := &db.notifier
	for again := true; again; {
		w.mu.Lock()
		pause := notifyInterval - time.Since(w.last)
		w.mu.Unlock()
		time.Sleep(pause)

		w.mu.Lock()
		payload := w.waiting.payload(db.id)
		w.last, w.waiting = time.Now(), Notification{} // listeners of this notification may miss later commits
		w.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
		_, _ = db.pool.Exec(ctx, sqltext.Notify, w.channel, payload) // a lost hint costs only a poll interval
		cancel()

		w.mu.Lock()
		again = w.waiting.Outbox || w.waiting.Queue
		w.sending = again
		w.mu.Unlock()
	}
}
