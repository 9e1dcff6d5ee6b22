//go:build unix

package integration_test

import (
	"context"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/schema"
)

// exits waits for the end of a process that ends itself.
func (p *inboundProcess) exits(t *testing.T) {
	t.Helper()
	gone := make(chan struct{})
	go func() {
		p.end.Do(func() { _ = p.cmd.Wait() })
		close(gone)
	}()
	select {
	case <-gone:
		require.Equal(t, "signal: killed", p.cmd.ProcessState.String(), "%s", p.log)
	case <-time.After(3 * patience):
		_ = p.cmd.Process.Kill()
		t.Fatalf("the process did not get to where it ends itself:\n%s", p.log)
	}
}

// TestParkKeepsOrder: processes are killed at each step of parking; what follows finds all, once and in order.
func TestParkKeepsOrder(t *testing.T) {
	extended(t)
	t.Parallel()
	for _, at := range []string{"before store", "after store", "after ack", "before leave"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newInboundWorld(t, 1)
			w.send(1500, 50)
			c, mend := w.parks()
			kills := []int64{1, 20}
			if at == "before leave" {
				kills = []int64{3}
			}
			for _, nth := range kills {
				faulty := c
				faulty.Fault = parkFault{At: at, Nth: nth}
				p := w.spawn(faulty)
				if at == "before leave" {
					eventually(t, func() bool { return w.parked() >= int(nth) }, "keys are parked")
					mend()
				}
				p.exits(t)
				w.send(1000, 50) // the next one has as much to store
			}
			w.spawn(c)
			if at != "before leave" {
				w.await(w.settled - w.failing())
				mend()
			}
			w.send(500, 50) // while the keys drain and leave
			w.settles()
		})
	}
}

// TestParkZombie: a process is frozen with a store in hand, until another one has its partition and the keys have left.
// Then what it stored is committed, and then it goes on where it was.
func TestParkZombie(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 1)
	w.send(1500, 50)
	c, mend := w.parks()
	park, err := outbox.FromPgx(w.h.pool, outbox.DBConfig{Tables: outbox.Tables{Outbox: "outbox_parked"}}, nil)
	require.NoError(t, err)
	_, err = schema.Migrate(t.Context(), park, schema.MigrateConfig{})
	require.NoError(t, err)
	w.h.exec(t, `create table landed (uuid text)`)
	w.h.exec(t, `create function gate() returns trigger language plpgsql as $$ begin
		if current_setting('application_name') = 'zombie' then
			perform pg_advisory_xact_lock_shared(42);
			insert into landed values (new.uuid);
		end if;
		return new; end $$`)
	w.h.exec(t, `create trigger gate before insert on outbox_parked for each row execute function gate()`)
	gate, err := w.h.pool.Acquire(t.Context())
	require.NoError(t, err)
	open := sync.OnceFunc(func() {
		_, err := gate.Exec(context.Background(), `select pg_advisory_unlock(42)`)
		assert.NoError(t, err)
		gate.Release()
	})
	defer open()
	_, err = gate.Exec(t.Context(), `select pg_advisory_lock(42)`)
	require.NoError(t, err)

	doomed := c
	// Without the timeout its handlers would keep their locks.
	doomed.URL = c.URL + "&application_name=zombie&idle_in_transaction_session_timeout=2000"
	frozen := w.spawn(doomed)
	eventually(t, func() bool {
		return w.h.count(t, `select count(*) from pg_locks where locktype = 'advisory' and objid = 42 and not granted`) > 0
	}, "a store is on its way")
	require.NoError(t, frozen.cmd.Process.Signal(syscall.SIGSTOP))
	thaw := sync.OnceFunc(func() { _ = frozen.cmd.Process.Signal(syscall.SIGCONT) })
	t.Cleanup(thaw)
	w.spawn(c)
	w.awaitParked()
	mend()
	w.await(w.settled)
	eventually(t, func() bool { return w.parked() == 0 }, "the park is empty")
	open()
	eventually(t, func() bool {
		return w.h.count(t, `select count(*) from landed`) > 0
	}, "what the zombie stored is committed")
	thaw()
	w.send(500, 50)
	w.settles()
}

// TestParkLeaves: a key that is handled again is not parked any more, though messages of it never cease to come.
func TestParkLeaves(t *testing.T) {
	t.Parallel()
	w := newInboundWorld(t, 1)
	w.send(1000, 20)
	c, mend := w.parks()
	w.serve(c, failsUntilMended(w.h))
	w.awaitParked()
	mend()
	last, same := w.stores(), 0
	eventually(t, func() bool {
		w.send(10, 5)
		now := w.stores()
		if same++; now != last {
			last, same = now, 0
		}
		return w.parked() == 0 && same >= 20
	}, "the keys leave")
	w.send(500, 20)
	w.settles()
	assert.Equal(t, last, w.stores(), "keys that had left were parked")
}

// TestParkBound: beyond MaxKeys the partition pauses.
func TestParkBound(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 1)
	w.send(3000, 100)
	c, mend := w.parks()
	c.MaxKeys = 2
	seen := &seenPartitions{}
	c.observer = seen
	w.serve(c, failsUntilMended(w.h))
	keys := func() int { return w.h.count(t, `select count(distinct key) from outbox_parked`) }
	eventually(t, func() bool { return w.parked() > 0 && keys() == 2 }, "two keys are parked")
	eventually(t, func() bool {
		return seen.any(func(p observe.PartitionState) bool {
			return p.Paused == observe.PausedByBlockedKey && p.PausedFor > 3*c.ParkAfter
		})
	}, "the partition pauses for the third")
	assert.Equal(t, 2, keys())
	mend()
	w.settles()
}

// parkCounter counts statements that touch the park.
type parkCounter struct {
	mu  sync.Mutex
	all []string
}

func (c *parkCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "outbox_parked") {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all = append(c.all, q.SQL)
	}
	return ctx
}

func (c *parkCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestParkCostsNothing: with nothing parked there is one statement for each claim.
func TestParkCostsNothing(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 2)
	w.send(500, 50)
	c, mend := w.parks()
	mend()
	first := w.serve(c, failsUntilMended(w.h)) // creates the tables
	w.await(w.settled)
	first.close()
	w.send(1000, 50)
	counter := &parkCounter{}
	h := pgxHandle(t, "counted", w.h.url, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = counter })
	counted := *w
	counted.h = h
	seen := &seenPartitions{}
	c.observer = seen
	counted.serve(c, failsUntilMended(h))
	w.await(w.settled)
	seconds := 0
	eventually(t, func() bool {
		seconds = 0
		seen.any(func(observe.PartitionState) bool { seconds++; return false })
		return seconds > 6 // one for each partition and second
	}, "some seconds pass")
	w.verify()
	counter.mu.Lock()
	defer counter.mu.Unlock()
	assert.LessOrEqual(t, len(counter.all), 2, "statements beside one per claim: %v", counter.all)
	assert.NotEmpty(t, counter.all)
	for _, sql := range counter.all {
		assert.True(t, isLook(sql), sql)
	}
}
