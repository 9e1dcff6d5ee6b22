//go:build unix

package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// long makes the crash tests run for many more rounds.
var long = os.Getenv("OUTBOX_LONG") != ""

// rounds returns how often to repeat something.
func rounds(short, extended int) int {
	if long {
		return extended
	}
	return short
}

// anyOf picks one at random of the names of subtests that take long and show the same. It returns all names in the long
// variant, and if -run selects subtests of this test.
func anyOf(t testing.TB, names ...string) []string {
	test, _, _ := strings.Cut(t.Name(), "/")
	for pattern := range strings.SplitSeq(flag.Lookup("test.run").Value.String(), "|") {
		of, _, subtests := strings.Cut(pattern, "/")
		if matched, err := regexp.MatchString(of, test); subtests && (matched || err != nil) {
			return names
		}
	}
	if long {
		return names
	}
	return []string{names[rand.IntN(len(names))]}
}

// someOf returns every fourth of n steps, from a random one on, and all of them in the long variant.
func someOf(t testing.TB, n int) (steps []int) {
	first, each := 0, 1
	if !long {
		each = 4
		first = rand.IntN(each)
		t.Logf("each %dth step from %d on", each, first)
	}
	for step := first; step < n; step += each {
		steps = append(steps, step)
	}
	return steps
}

// crashWorld is a database, a source of orders, a broker, and the worker processes between them. The database, the
// source and the broker are always right about their data; workers come and go.
type crashWorld struct {
	t      testing.TB
	h      handle
	shop   shop
	source *source
	broker *broker
	pooler string // URL of a PgBouncer for workers that use one; "" until the first of them starts

	mu      sync.Mutex
	workers []*worker
	spawned int
	wrong   []string
}

// newCrashWorld sets up a world in an empty database.
func newCrashWorld(t testing.TB, h handle, keys int) *crashWorld {
	t.Helper()
	require.NoError(t, makeTables(t.Context(), h.db))
	makeShop(t, h, keys)
	shop, err := newShop(h.db)
	require.NoError(t, err)
	w := &crashWorld{t: t, h: h, shop: shop, source: newSource(keys), broker: newBroker()}
	t.Cleanup(func() {
		for _, p := range w.workers {
			if !p.ended() {
				p.kill()
			}
			if t.Failed() {
				t.Logf("%s: %v\n%s", p.cfg.Name, p.exit, p.log)
			}
		}
	})
	return w
}

func (w *crashWorld) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// check verifies what must hold at every moment, whatever has crashed.
func (w *crashWorld) check(round string) {
	w.t.Helper()
	var wrong []string
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	zero := func(what, query string) {
		if n := w.h.count(w.t, query); n != 0 {
			bad("%d %s", n, what)
		}
	}

	// First the state of the source and the broker, then that of the database, which may only be ahead.
	acked, arrived := w.source.ackedOrders(), w.broker.arrivals()
	booked := set(column[string](w.t, w.h, `select order_id from bookings`))
	dead := set(column[string](w.t, w.h, `select message_id from inbox where dead_at is not null`))
	for id, kind := range acked {
		if kind == kindPoison && !dead[id] || kind != kindPoison && !booked[id] {
			bad("order %s %s was acked and is lost", id, kind)
		}
	}
	committed := set(column[string](w.t, w.h, `select uuid from events
		union select o.uuid from outbox o join inbox i on i.message_id = o.metadata->>'uuid_poisoned' where i.dead_at is not null`))
	for uuid := range arrived {
		if !committed[uuid] {
			bad("message %s was published and never committed", uuid)
		}
	}
	// The opposite order for messages marked as published.
	settled := column[string](w.t, w.h, `select uuid from outbox where published_at is not null`)
	arrived = w.broker.arrivals()
	for _, uuid := range settled {
		if _, ok := arrived[uuid]; !ok {
			bad("message %s is settled and was never published", uuid)
		}
	}
	zero("orders were booked twice", `select count(*) from (select from bookings group by order_id `+
		`having count(*) > 1) twice`)
	zero("orders are in the inbox or among the bookings only",
		`select count(*) from (select message_id from inbox where processed_at is not null and consumer like '%book') i
		 full join bookings b on b.order_id = i.message_id where i.message_id is null or b.order_id is null`)
	zero("poison orders were booked",
		`select count(*) from inbox i join bookings b on b.order_id = i.message_id where i.dead_at is not null`)
	zero("messages are only in the outbox, or only among the committed ones",
		`select count(*) from (select uuid from events union all select message_id from inbox where dead_at is not null) e
		 full join (select coalesce(metadata->>'uuid_poisoned', uuid) as uuid from outbox) o on o.uuid = e.uuid where o.uuid is null or e.uuid is null`)
	zero("messages are in the outbox twice", `select count(*) - count(distinct uuid) from outbox`)

	w.broker.mu.Lock()
	wrong = append(wrong, w.broker.wrong...)
	w.broker.mu.Unlock()
	w.mu.Lock()
	wrong = append(wrong, w.wrong...)
	w.mu.Unlock()
	if len(wrong) > 0 {
		w.t.Fatalf("%s: %d things are wrong:\n%s", round, len(wrong), strings.Join(wrong[:min(len(wrong), 10)], "\n"))
	}
}

// finish waits until the workers that are alive have done all work, and checks that nothing is missing.
func (w *crashWorld) finish() {
	w.t.Helper()
	eventually(w.t, w.source.exhausted, "all orders acked")
	w.settle("at the end")
	acked := w.source.ackedOrders()
	require.Len(w.t, acked, w.source.made, "an order was never acked")
	w.check("at the end")
	w.t.Logf("%d orders, %d copies of them; %d messages, %d copies of them; %d worker processes",
		w.source.made, w.source.copies, len(w.broker.arrivals()), w.broker.duplicates(), w.spawned)
}

// settle waits until all committed messages are published and settled.
func (w *crashWorld) settle(when string) {
	w.t.Helper()
	const pending = `select count(*) from outbox where published_at is null`
	deadline := time.Now().Add(patience)
	for w.h.count(w.t, pending) > 0 {
		if time.Now().After(deadline) {
			w.check(when)
			w.t.Fatalf("%s: %d messages are not settled, %d of them dead: %v", when, w.h.count(w.t, pending),
				w.h.count(w.t, pending+` and dead_at is not null`),
				column[string](w.t, w.h, `select format('%s %s lane %s attempts %s due in %s: %s', id, key, lane, attempts,
					due_at - clock_timestamp(), last_error) from outbox where published_at is null order by id limit 20`))
		}
		time.Sleep(20 * time.Millisecond)
	}
	arrived := w.broker.arrivals()
	for _, uuid := range column[string](w.t, w.h, `select uuid from outbox`) {
		if _, ok := arrived[uuid]; !ok {
			w.t.Fatalf("%s: message %s was never published", when, uuid)
		}
	}
}

// lanes returns how many lanes a worker owns.
func (w *crashWorld) lanes(p *worker) int {
	w.t.Helper()
	return w.h.count(w.t, `select count(*) from outbox_lanes l join outbox_forwarders f on f.id = l.owner `+
		`where f.name = $1`, p.cfg.Name)
}

func set(list []string) map[string]bool {
	m := make(map[string]bool, len(list))
	for _, s := range list {
		m[s] = true
	}
	return m
}

const (
	auditTopic      = "audit"  // messages published by the handler while it runs
	eventsTopic     = "events" // messages returned by the handler
	deadLetterTopic = "dead_letters"
	consumer        = "book"
)

// makeShop creates the tables of a shop with the given number of keys, starting with key-0.
func makeShop(t testing.TB, h handle, keys int) {
	t.Helper()
	h.exec(t, `create table counters (key text primary key, n bigint not null)`)
	h.exec(t, `create table bookings (order_id text not null, key text not null)`)
	h.exec(t, `create table events (uuid text not null, key text not null, n bigint not null)`)
	h.exec(t, `insert into counters select 'key-' || i, 0 from generate_series(0, $1::int - 1) i`, keys)
}

// event is the payload of a booking's messages. The events of a key are numbered from 1 in the order of their
// transactions, without gaps.
type event struct {
	Key string
	N   int64
}

func (e event) message() *message.Message {
	payload, _ := json.Marshal(e)
	msg := newMessage(string(payload))
	outbox.SetKey(msg, e.Key)
	return msg
}

// shop is the handler of the crash tests. It leaves a trace of everything it does, which tests can count.
type shop struct {
	db  *outbox.DB
	pub *outbox.Publisher
}

var errUndone = errors.New("undone on purpose")

// book books an order in the transaction of ctx, once per call: no constraint prevents booking it twice. It publishes
// the first of its two events and returns the second. The row lock on the counter serializes transactions of one key.
func (s shop) book(ctx context.Context, order, key string) ([]*message.Message, error) {
	tx, err := (*core.DB)(s.db).Tx(ctx)
	if err != nil {
		return nil, err
	}
	var n int64
	err = drive.Collect(ctx, tx, func(rows drive.Rows) error { return rows.Scan(&n) },
		`update counters set n = n + 2 where key = $1 returning n`, key)
	if err != nil {
		return nil, fmt.Errorf("count: %w", err)
	}
	first, second := event{key, n - 1}.message(), event{key, n}.message()
	if _, err := tx.Exec(ctx, `insert into bookings values ($1, $2)`, order, key); err != nil {
		return nil, fmt.Errorf("book: %w", err)
	}
	if _, err := tx.Exec(ctx, `insert into events values ($1, $3, $4::bigint - 1), ($2, $3, $4::bigint)`, first.UUID,
		second.UUID, key, n); err != nil {
		return nil, fmt.Errorf("record events: %w", err)
	}
	if err := s.pub.PublishContext(ctx, auditTopic, first); err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	err = outbox.InTx(ctx, s.db, func(ctx context.Context) error {
		if err := s.pub.PublishContext(ctx, auditTopic, event{key, -1}.message()); err != nil {
			return err
		}
		return errUndone
	})
	if !errors.Is(err, errUndone) {
		return nil, fmt.Errorf("savepoint: %w", err)
	}
	return []*message.Message{second}, nil
}

// place does what the middlewares do around book, for tests without a Router.
func (s shop) place(ctx context.Context, order, key string) error {
	return outbox.InTx(ctx, s.db, func(ctx context.Context) error {
		q, err := (*core.DB)(s.db).Tx(ctx)
		if err != nil {
			return err
		}
		var ours, standby bool
		var attempts int
		var seconds float64
		var token int64
		err = drive.Collect(ctx, q, func(rows drive.Rows) error {
			return rows.Scan(&ours, &attempts, &seconds, &token, &standby)
		},
			sqltext.Tables{}.Render(sqltext.ClaimInbox), consumer, order, nil)
		if err != nil || !ours {
			return err
		}
		events, err := s.book(ctx, order, key)
		if err != nil {
			return err
		}
		return (*core.Publisher)(s.pub).Capture(ctx, eventsTopic, events...)
	})
}

func newShop(db *outbox.DB) (shop, error) {
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	return shop{db, pub}, err
}

// Order is a message for the handler.
type Order struct {
	ID, Key, Kind string
}

const (
	kindFailing = "failing" // the handler fails at the first delivery
	kindPoison  = "poison"
)

var errStopping = errors.New("stopping")

// source is a broker that delivers orders at least once: to another worker after a crash or a nack, and some of them
// twice for no reason, immediately or after the ack.
type source struct {
	mu      sync.Mutex
	changed *sync.Cond
	keys    int
	queue   []Order
	holding map[*worker][]Order // delivered, no ack yet
	acked   map[string]string   // the order's kind, by ID
	made    int
	copies  int
}

func newSource(keys int) *source {
	s := &source{keys: keys, holding: map[*worker][]Order{}, acked: map[string]string{}}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// feed creates orders at a steady pace until stop is called.
func (s *source) feed(every time.Duration) (stop func()) {
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.make()
			case <-stopped:
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(stopped); <-done })
}

func (s *source) make() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) > 50 {
		return
	}
	s.made++
	o := Order{ID: fmt.Sprintf("order-%d", s.made), Key: fmt.Sprintf("key-%d", rand.IntN(s.keys))}
	switch {
	case s.made%16 == 7:
		o.Kind = kindPoison
	case s.made%8 == 3:
		o.Kind = kindFailing
	}
	s.push(o)
	if s.made%4 == 0 {
		s.copies++
		s.push(o)
	}
}

// push requires mu to be held.
func (s *source) push(o Order) {
	s.queue = append(s.queue, o)
	s.changed.Broadcast()
}

// take waits for an order for a worker.
func (s *source) take(w *worker) (Order, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) == 0 && !w.stopping() {
		s.changed.Wait()
	}
	if w.stopping() {
		return Order{}, errStopping
	}
	o := s.queue[0]
	s.queue = s.queue[1:]
	s.holding[w] = append(s.holding[w], o)
	return o, nil
}

func (s *source) ack(w *worker, o Order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.drop(w, o) {
		return
	}
	s.acked[o.ID] = o.Kind
	if rand.IntN(8) == 0 {
		s.copies++
		s.push(o)
	}
}

func (s *source) nack(w *worker, o Order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.drop(w, o) {
		return
	}
	if o.Kind == kindFailing {
		o.Kind = ""
	}
	s.push(o)
}

// drop reports whether the worker still held the order; orders that it held when it ended were redelivered.
func (s *source) drop(w *worker, o Order) bool {
	for i, held := range s.holding[w] {
		if held == o {
			s.holding[w] = append(s.holding[w][:i], s.holding[w][i+1:]...)
			return true
		}
	}
	return false
}

// release redelivers the orders of an ended worker to others, and wakes it if it is only stopping.
func (s *source) release(w *worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.ended() {
		for _, o := range s.holding[w] {
			s.push(o)
		}
		delete(s.holding, w)
	}
	s.changed.Broadcast()
}

// ackedOrders returns the kinds of the orders that were acked.
func (s *source) ackedOrders() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	acked := make(map[string]string, len(s.acked))
	for id, kind := range s.acked {
		acked[id] = kind
	}
	return acked
}

// exhausted reports whether every order, and every copy of one, was acked.
func (s *source) exhausted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, held := range s.holding {
		if len(held) > 0 {
			return false
		}
	}
	return len(s.queue) == 0
}
