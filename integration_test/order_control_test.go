package integration_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

// The negative controls each remove one half of what makes reading exact. If they pass, the order tests prove nothing.

const (
	defaultWithoutXid = `alter table outbox alter id set default nextval('outbox_id_seq')`

	// slowInsert widens the interval between assigning the row's id, which its default does before triggers run, and
	// the transaction's id, which without our default happens only after them.
	slowInsert = `
create function slow_insert() returns trigger language plpgsql as $$ begin perform pg_sleep(0.15); return new; end $$;
create trigger slow_insert before insert on outbox for each row when (new.topic = 'slow') execute function slow_insert()`
)

func controlForwarder(t *testing.T, h handle, l *ledger) {
	f, err := forwarder.New(h.db, l, orderConfig(), newLogCapture(t))
	require.NoError(t, err)
	runInBackground(t, f)
}

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
	t.Parallel()
	noLeaks(t)
	url := newOrderDatabase(t)
	writer := pgxHandle(t, "writer", url, manyConns)
	sabotage := &fetchSaboteur{forgetTx: true}
	reader := pgxHandle(t, "reader", url, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = sabotage })
	l := newLedger(true)
	orderRun{writers: 16, time: patience, until: l.violated}.write(t, writer, reader, l)
	assert.NotZero(t, sabotage.forgot.Load(), "the tracer found nothing to take away: "+
		"did the arguments of the read change?")
	assert.NotEmpty(t, l.faults(), "a plain id > low kept the order")
}

// TestOrderControlDefaultWithoutXid runs the order test with row ids that are assigned before transaction ids.
func TestOrderControlDefaultWithoutXid(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	_, reader := ownMigratedServer(t) // other transactions would delay the reads
	writer := pgxHandle(t, "writer", reader.url, manyConns)
	l := newLedger(false)
	run := orderRun{writers: 16, time: patience, until: l.violated, single: true, started: func(w handle) {
		execScript(t, w, slowInsert)
		w.exec(t, `create trigger slow_now_and_then before insert on outbox for each row when (random() < 0.05) execute `+
			`function slow_insert()`)
		w.exec(t, defaultWithoutXid)
	}}
	run.write(t, writer, reader, l)
	assert.NotEmpty(t, l.faults(), "row ids that do not follow transaction ids kept the order")
}

// TestOrderOfASlowInsert is the one case that needs the id's default: a row gets its id, reads pass it, and only then
// is it written. With our default it is read in order, without it is not.
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
			controlForwarder(t, h, l)
			if c.wrong {
				h.exec(t, defaultWithoutXid)
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
				}, "all arrive, or the later one without the earlier")
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
