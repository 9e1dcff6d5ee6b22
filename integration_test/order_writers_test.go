package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

var errAborted = errors.New("aborted on purpose")

const insertPlain = `insert into outbox (uuid, topic, key, payload) values ($1, $2, $3, convert_to($4, 'UTF8'))`

// orderWriters writes messages of many keys in transactions of every kind. The next transaction of a key begins after
// the commit of the previous one returned.
type orderWriters struct {
	t         *testing.T
	h         handle
	ledger    *ledger
	publisher *outbox.Publisher
	prepared  bool // some transactions are committed in two phases; pgx only

	free chan string // keys not being written
	next map[string]*int
	kind struct {
		sync.Mutex
		count map[string]int
	}
}

func newOrderWriters(t *testing.T, h handle, l *ledger, keys int) *orderWriters {
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{}, nil)
	require.NoError(t, err)
	w := &orderWriters{t: t, h: h, ledger: l, publisher: pub, free: make(chan string, keys), next: map[string]*int{}}
	w.kind.count = map[string]int{}
	for i := range keys {
		key := fmt.Sprintf("key-%d", i)
		w.next[key] = new(int)
		w.free <- key
	}
	h.exec(t, "create table other (id bigint generated always as identity, note text)")
	return w
}

// run runs n writers, and long transactions next to them, until ctx ends.
func (w *orderWriters) run(ctx context.Context, n int) {
	var writers sync.WaitGroup
	for i := range n {
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), uint64(time.Now().UnixNano())))
			for ctx.Err() == nil {
				w.stint(ctx, rng)
			}
		})
	}
	writers.Go(func() { w.long(ctx, "long-early", true) })
	writers.Go(func() { w.long(ctx, "long-late", false) })
	writers.Wait()
}

// stint runs a few transactions on the same keys, one right after another.
func (w *orderWriters) stint(ctx context.Context, rng *rand.Rand) {
	keys := []string{<-w.free}
	for rng.IntN(2) == 0 && len(keys) < 6 {
		select {
		case key := <-w.free:
			keys = append(keys, key)
			continue
		default:
		}
		break
	}
	slices.Sort(keys)
	for range 1 + rng.IntN(4) {
		if ctx.Err() != nil {
			break
		}
		w.transaction(rng, keys)
	}
	for _, key := range keys {
		w.free <- key
	}
}

type orderRow struct{ key, payload string }

func (w *orderWriters) transaction(rng *rand.Rand, keys []string) {
	counts := map[string]int{}
	var rows []orderRow
	for _, key := range keys {
		for range 1 + rng.IntN(3)/2*rng.IntN(3) {
			counts[key]++
			rows = append(rows, orderRow{key, strconv.Itoa(*w.next[key] + counts[key])})
		}
	}
	abort := rng.IntN(12) == 0
	if abort {
		for i := range rows {
			rows[i].payload = ghost
		}
	}
	var err error
	if w.prepared && rng.IntN(8) == 0 {
		err = w.inTwoPhases(rng, rows, abort)
	} else {
		err = outbox.InTx(context.Background(), w.h.db, func(ctx context.Context) error {
			return errors.Join(w.fill(ctx, rng, rows), func() error {
				if abort {
					return errAborted
				}
				return nil
			}())
		})
	}
	switch {
	case abort:
		w.saw("abort")
		assert.ErrorIs(w.t, err, errAborted)
	case assert.NoError(w.t, err):
		for key, n := range counts {
			*w.next[key] += n
			w.ledger.commit(key, *w.next[key])
		}
	}
}

// fill writes the rows in the transaction of ctx, in one of many ways.
func (w *orderWriters) fill(ctx context.Context, rng *rand.Rand, rows []orderRow) error {
	tx, _ := (*core.DB)(w.h.db).Tx(ctx)
	exec := func(query string, args ...any) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	}
	if rng.IntN(6) == 0 {
		w.saw("early transaction id")
		if err := exec("select pg_current_xact_id()"); err != nil {
			return err
		}
		time.Sleep(rand.N(100 * time.Millisecond))
	}
	if rng.IntN(10) == 0 {
		if err := w.savepoints(ctx, rng, rows[0].key); err != nil {
			return err
		}
	}
	if rng.IntN(25) == 0 {
		w.saw("insert timed out")
		err := errors.Join(exec("savepoint timed"), exec("set local statement_timeout = '3ms'"))
		if err != nil {
			return err
		}
		err = exec(`insert into outbox (uuid, topic, key, payload)
			select gen_random_uuid(), 'orders', $1, convert_to('ghost', 'UTF8') from generate_series(1, 200) where pg_sleep(0.0005) is not null`, rows[0].key)
		if text.SQLState(err) != "57014" {
			return fmt.Errorf("the insert was not cancelled: %w", err)
		}
		if err := errors.Join(exec("rollback to savepoint timed"), exec("set local statement_timeout = 0")); err != nil {
			return err
		}
	}
	if err := w.insert(ctx, rng, tx, rows); err != nil {
		return err
	}
	switch rng.IntN(8) {
	case 0, 1, 2: // COMMIT follows immediately
	case 3:
		time.Sleep(rand.N(150 * time.Millisecond))
	default:
		time.Sleep(rand.N(8 * time.Millisecond))
	}
	return nil
}

// savepoints writes messages behind savepoints that are rolled back; a third of the time more savepoints than fit into
// a backend's cache of subtransactions.
func (w *orderWriters) savepoints(ctx context.Context, rng *rand.Rand, key string) error {
	tx, _ := (*core.DB)(w.h.db).Tx(ctx)
	n := 1 + rng.IntN(4)
	if rng.IntN(3) == 0 {
		w.saw("more than 64 savepoints")
		n = 70
	} else {
		w.saw("savepoint")
	}
	for i := range n {
		for _, query := range []string{
			"savepoint s",
			"insert into outbox (uuid, topic, key, payload) values (gen_random_uuid(), 'orders', '" + key + "', 'ghost')",
			"rollback to savepoint s",
		} {
			if i%3 == 2 && query != "savepoint s" { // these subtransactions last as long as the transaction
				query = "insert into other (note) values ('kept')"
			}
			if _, err := tx.Exec(ctx, query); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *orderWriters) insert(ctx context.Context, rng *rand.Rand, tx drive.Querier, rows []orderRow) error {
	topics := []string{"orders", "audit"}
	switch way := rng.IntN(5); {
	case way == 0 && w.h.pool != nil:
		native, err := outbox.PgxTx(ctx)
		if err != nil {
			return err
		}
		w.saw("copy")
		_, err = native.CopyFrom(ctx, pgx.Identifier{"outbox"}, []string{"uuid", "topic", "key", "payload"},
			pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
				return []any{watermill.NewUUID(), topics[i%2], rows[i].key, []byte(rows[i].payload)}, nil
			}))
		return err
	case way == 1:
		w.saw("plain sql")
		for i, r := range rows {
			if _, err := tx.Exec(ctx, insertPlain, watermill.NewUUID(), topics[i%2], r.key, r.payload); err != nil {
				return err
			}
			if rng.IntN(4) == 0 {
				time.Sleep(rand.N(5 * time.Millisecond))
			}
		}
		return nil
	}
	w.saw("publisher")
	byTopic := topics[rng.IntN(2)]
	var msgs []*message.Message
	for _, r := range rows {
		msg := newMessage(r.payload)
		outbox.SetKey(msg, r.key)
		msgs = append(msgs, msg)
	}
	if rng.IntN(2) == 0 {
		return (*core.Publisher)(w.publisher).Capture(ctx, byTopic, msgs...)
	}
	return w.publisher.PublishContext(ctx, byTopic, msgs...)
}

// inTwoPhases prepares a transaction and decides some time later.
func (w *orderWriters) inTwoPhases(rng *rand.Rand, rows []orderRow, abort bool) error {
	w.saw("prepared")
	ctx := context.Background()
	conn, err := w.h.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "begin"); err != nil {
		return err
	}
	for _, r := range rows {
		if _, err := conn.Exec(ctx, insertPlain, watermill.NewUUID(), "orders", r.key, r.payload); err != nil {
			return err
		}
	}
	name := watermill.NewUUID()
	if _, err := conn.Exec(ctx, "prepare transaction '"+name+"'"); err != nil {
		return errors.Join(err, func() error { _, err := conn.Exec(ctx, "rollback"); return err }())
	}
	time.Sleep(rand.N(50 * time.Millisecond))
	if abort {
		_, err := conn.Exec(ctx, "rollback prepared '"+name+"'")
		return errors.Join(err, errAborted)
	}
	_, err = conn.Exec(ctx, "commit prepared '"+name+"'")
	return err
}

// long runs transactions that last seconds; one kind writes its message first, the other last.
func (w *orderWriters) long(ctx context.Context, key string, first bool) {
	for n := 1; ctx.Err() == nil; n++ {
		err := outbox.InTx(context.WithoutCancel(ctx), w.h.db, func(tx context.Context) error {
			message := func() error { return w.h.execTx(tx, insertPlain, watermill.NewUUID(), "orders", key, strconv.Itoa(n)) }
			if first {
				if err := message(); err != nil {
					return err
				}
			}
			for end := time.Now().Add(2*time.Second + rand.N(2*time.Second)); time.Now().Before(end) && ctx.Err() == nil; {
				if err := w.h.execTx(tx, "insert into other (note) values ('long')"); err != nil {
					return err
				}
				time.Sleep(20 * time.Millisecond)
			}
			if !first {
				return message()
			}
			return nil
		})
		if assert.NoError(w.t, err) {
			w.ledger.commit(key, n)
		}
	}
}

func (w *orderWriters) saw(kind string) {
	w.kind.Lock()
	defer w.kind.Unlock()
	w.kind.count[kind]++
}
