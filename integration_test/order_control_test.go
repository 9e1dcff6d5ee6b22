package integration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// Each negative control removes one half of the rules that make reads exact. If they pass, the order tests prove
// nothing.

// slowInsert widens the interval between assigning the row's id, which its default does before triggers run, and the
// transaction's id, which without our default is assigned only after the triggers.
const slowInsert = `
create function slow_insert() returns trigger language plpgsql as $$ begin perform pg_sleep(0.15); return new; end $$;
create trigger slow_insert before insert on outbox for each row when (new.topic = 'slow') execute function slow_insert()`

func execScript(t *testing.T, h handle, script string) {
	conn, err := h.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Conn().PgConn().Exec(t.Context(), script).ReadAll()
	require.NoError(t, err)
}

// TestOrderControlForgetfulFetch runs the order test with a plain id > low.
func TestOrderControlForgetfulFetch(t *testing.T) {
	extended(t)
	parallel(t)
	url := newOrderDatabase(t)
	writer := pgxHandle(t, "writer", url, manyConns)
	sabotage := &fetchSaboteur{forgetTx: true}
	reader := pgxHandle(t, "reader", url, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = sabotage })
	l := newLedger(true)
	orderRun{writers: 16, time: patience, until: l.violated}.write(t, writer, reader, l)
	assert.NotZero(t, sabotage.forgot.Load(), "the tracer found nothing to remove: "+
		"did the arguments of the read change?")
	assert.NotEmpty(t, l.faults(), "a plain id > low kept the order")
}

// TestOrderOfASlowInsert is the only case that needs the id's default: a row gets its id, reads pass it, and only then
// is it written. With our default it is read in order; without it, out of order.
func TestOrderOfASlowInsert(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		wrong bool
	}{{"our default", false}, {"default without transaction id", true}} {
		t.Run(c.name, func(t *testing.T) {
			if c.wrong {
				extended(t)
			}
			noLeaks(t)
			_, h := ownMigratedServer(t) // other transactions would delay the reads
			execScript(t, h, slowInsert)
			l := newLedger(false)
			runForwarder(t, h, l, orderConfig(), newLogCapture(t))
			if c.wrong {
				h.exec(t, `alter table outbox alter id set default nextval('outbox_id_seq')`)
			}
			insert := func(topic, key, payload string) {
				h.exec(t, insertPlain, watermill.NewUUID(), topic, key, payload)
			}
			insert("orders", "other", "1") // so that a row precedes the position of the reads
			eventually(t, func() bool { _, calls, _ := l.total(); return calls == 1 }, "first message")

			n, last := 1, 0
			insertBoth := func() {
				slow := make(chan struct{})
				go func() {
					defer close(slow)
					insert("slow", "key", itoa(last+1))
				}()
				insertWhile := time.NewTicker(5 * time.Millisecond)
				defer insertWhile.Stop()
				for done := false; !done; {
					select {
					case <-slow:
						done = true
					case <-insertWhile.C:
						n++
						insert("orders", "other", itoa(n))
					}
				}
				insert("orders", "key", itoa(last+2))
				last += 2
				eventually(t, func() bool {
					_, calls, _ := l.total()
					return calls >= n+last || len(l.faults()) > 0
				}, "all messages arrive, or the later one without the earlier")
			}
			insertBoth()
			if c.wrong {
				for deadline := time.Now().Add(patience); len(l.faults()) == 0 && time.Now().Before(deadline); {
					insertBoth() // a busy machine does not always read at the wrong moment
				}
				assert.NotEmpty(t, l.faults(), "disorder")
				return
			}
			l.commit("key", last)
			l.commit("other", n)
			l.allArrive(t)
			assert.Empty(t, l.faults())
		})
	}
}

// fetchSaboteur is a tracer on a forwarder's pool that makes some reads of the outbox time out or break, or removes the
// tracked transactions from all reads.
type fetchSaboteur struct {
	every    int64 // reads per failure, the first failure soon; 0 = no failures
	forgetTx bool  // leaves a plain id > low
	reads    atomic.Int64
	failed   atomic.Int64
	forgot   atomic.Int64
	took     atomic.Int64 // nanoseconds, total of all reads
}

func (s *fetchSaboteur) String() string {
	reads := max(s.reads.Load(), 1)
	return fmt.Sprintf("%d reads, %d failed, average %s", reads, s.failed.Load(),
		time.Duration(s.took.Load()/reads))
}

type sabotagedKey struct{}

type sabotaged struct {
	begun  time.Time
	cancel context.CancelFunc
}

func isFetch(sql string) bool { return strings.Contains(sql, "pg_snapshot_xmax") }

func (s *fetchSaboteur) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData,
) context.Context {
	if !isFetch(data.SQL) {
		return ctx
	}
	if s.forgetTx {
		s.forget(data.Args)
	}
	read := sabotaged{begun: time.Now(), cancel: func() {}}
	if n := s.reads.Add(1); s.every > 0 && n%s.every == s.every/4 {
		if s.failed.Add(1)%10 == 0 {
			ctx, read.cancel = context.WithCancel(ctx) // like a broken connection
			read.cancel()
		} else {
			ctx, read.cancel = context.WithTimeout(ctx, rand.N(6*time.Millisecond))
		}
	}
	return context.WithValue(ctx, sabotagedKey{}, read)
}

// forget empties the arrays of tracked transactions, the first four arguments, in place: the caller sends the same
// slice.
func (s *fetchSaboteur) forget(args []any) {
	left := 4
	for i := range args {
		if list, ok := args[i].([]int64); ok && left > 0 {
			left--
			args[i] = []int64{}
			s.forgot.Add(int64(len(list)))
		}
	}
}

func (s *fetchSaboteur) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if read, ok := ctx.Value(sabotagedKey{}).(sabotaged); ok {
		s.took.Add(int64(time.Since(read.begun)))
		read.cancel()
	}
}

// TestStoreFirstInOrder is the recipe of the README: a second set of outbox tables between the broker and the handlers,
// which keeps the order of each key and drops copies.
func TestStoreFirstInOrder(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `alter table effects add n bigserial`)
	work := h.with(t, sqltext.Tables{Outbox: "work"})
	require.NoError(t, makeTables(t.Context(), work.db))
	broker := newFeed()
	startRouter(t, func(r *message.Router) {
		store := r.AddHandler("store", "orders", broker, "orders", newOutboxPublisher(t, work),
			func(msg *message.Message) ([]*message.Message, error) {
				return message.Messages{msg}, nil
			})
		store.AddMiddleware(stackFor(t, newOutboxPublisher(t, work), middleware.StackConfig{}, nil)...)
		process := r.AddHandler("process", "orders", newSubscriber(t, work, quickConfig()), "events",
			newOutboxPublisher(t, h), book(h))
		process.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{}, nil)...)
	})
	for i := range 10 {
		for _, key := range []string{"a", "b", "c"} {
			for range 2 { // brokers deliver twice
				msg := message.NewMessage(key+itoa(i), nil)
				outbox.SetKey(msg, key)
				require.True(t, broker.deliver(t, msg), "the message is acked once stored")
			}
		}
	}
	eventually(t, func() bool { return outboxed(t, h) == 30 }, "each message is processed")
	assert.Equal(t, 30, h.count(t, "select count(*) from effects"))
	for _, key := range []string{"a", "b", "c"} {
		assert.Equal(t, numbered(key, 0, 9),
			column[string](t, h, "select message_id from effects where left(message_id, 1) = $1 order by n", key))
	}
}
