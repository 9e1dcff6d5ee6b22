//go:build unix

package integration_test

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

func tried(w world, payloads []string) (n int) {
	for _, p := range payloads {
		if w.triedTimes(p) > 0 {
			n++
		}
	}
	return n
}

// retentions has values of forwarder.Config.Retention that keep published messages or delete them.
var retentions = map[string]time.Duration{"keeping": 0, "deleting": -1}

// TestServerWithOtherRows publishes messages while their server fails in one of several ways and returns with their
// ids assigned to other messages: those are published as well, whether published messages are kept or deleted.
func TestServerWithOtherRows(t *testing.T) {
	extended(t)
	parallel(t)
	for name, end := range map[string]func(t *testing.T, h handle, server *services.Postgres){
		"kill": func(t *testing.T, _ handle, server *services.Postgres) {
			require.NoError(t, server.Kill())
			require.NoError(t, server.Restart(t.Context()))
		},
		"a backend is killed": func(t *testing.T, h handle, _ *services.Postgres) { killBackend(t, h) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, kept := range anyOf(t, "keeping", "deleting") {
				t.Run(kept, func(t *testing.T) { serverWithOtherRows(t, retentions[kept], end) })
			}
		})
	}
}

func serverWithOtherRows(
	t *testing.T, retention time.Duration, end func(t *testing.T, h handle, server *services.Postgres),
) {
	server, h := ownMigratedServer(t)
	publishing, goOn, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
	settled := &settledCounter{}
	h = h.seenBy(t, settled)
	cfg := quickConfig()
	cfg.Retention = retention
	w := startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
		switch string(msg.Payload) {
		case "lost":
			close(publishing)
			<-goOn
		case "found":
			<-release
		}
		return nil
	})
	w.publish(t, "orders", "K", "lost")
	<-publishing
	h.exec(t, "update outbox set uuid = 'another', payload = 'found', key = 'L'")
	end(t, h, server)
	h.pool.Reset()
	eventually(t, func() bool {
		_, err := (*core.DB)(h.db).Exec(t.Context(), "select 1")
		return err == nil
	}, "the server is back")
	w.publish(t, "orders", "M", "later")
	w.arrives(t, "later") // it has read from the new server
	close(goOn)
	w.arrives(t, "lost")
	eventually(t, func() bool { return settled.done.Load() == 2 }, "both are settled")
	assert.Equal(t, []string{"another"}, column[string](t, h, "select uuid from outbox where published_at is null"))
	close(release)
	w.arrives(t, "found")
	w.idle(t)
	require.Zero(t, h.count(t, "select count(*) from outbox where published_at is null"))
}

// killBackend kills a backend of the test's own server, which then empties unlogged tables and recovers.
func killBackend(t *testing.T, h handle) {
	t.Helper()
	conn, err := h.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	started := value[time.Time](t, h, "select pg_postmaster_start_time()")
	require.NoError(t, syscall.Kill(int(conn.Conn().PgConn().PID()), syscall.SIGKILL))
	eventually(t, func() bool { return conn.Ping(t.Context()) != nil }, "the backend is gone")
	h.pool.Reset()
	eventually(t, func() bool {
		_, err := (*core.DB)(h.db).Exec(t.Context(), "checkpoint")
		return err == nil
	}, "the server is back")
	require.Equal(t, started, value[time.Time](t, h, "select pg_postmaster_start_time()"), "the server was restarted")
}

// TestFailureOfAnotherLife: a failure is on its way to the database when ids begin to mean other messages, and arrives
// after blocked keys were loaded and before the first read. If it were recorded, its message would not be read, and the
// block on its key would be unknown.
func TestFailureOfAnotherLife(t *testing.T) {
	parallel(t)
	h, gate := newStatementGate(t, newMigratedDatabase(t))
	defer gate.releaseAll()
	cfg := quickConfig()
	cfg.QueryTimeout, cfg.PollInterval = time.Minute, 10*time.Millisecond
	cfg.Backoff = outbox.Backoff{Initial: time.Second, Max: time.Second}
	w := startForwarderOn(t, h, cfg, refuse("m1"))
	w.idle(t)
	failure := gate.hold(sqltext.SettleFailed, 0)
	w.publish(t, "orders", "K", "m1", "m2")
	<-failure.arrived
	var reads []*heldStatement
	loaded := make(chan struct{})
	gate.onRun(sqltext.LoadBlocked, func() {
		reads = gate.holdReads()
		close(loaded)
	})
	h.exec(t, "alter sequence outbox_id_seq restart with 1000") // the ids of another incarnation
	within(t, "the blocked keys are loaded again", loaded)
	gate.arrives(t, "a read", reads...)
	w.answers(nil)
	before := value[string](t, h, "select string_agg(id || ' ' || attempts, ', ' order by id) from outbox")
	gate.release(failure)
	within(t, "the end of the failure's statement", failure.ended)
	assert.Equal(t, before, value[string](t, h, "select string_agg(id || ' ' || attempts, ', ' order by id) from outbox"),
		"the failure was recorded")
	gate.release(reads...)
	w.arrives(t, "m1", "m2")
	assert.Equal(t, []string{"m1", "m2"}, w.payloads("K"))
}

// TestNameOfALifeThatCannotBeWritten: another session has locked the table with the incarnation. That is a read error
// like any other, and reading continues when the lock is released.
func TestNameOfALifeThatCannotBeWritten(t *testing.T) {
	extended(t)
	h := onPgx(t)
	h.exec(t, "delete from outbox_life")
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), "lock table outbox_life in share mode") // can be read but not written
	require.NoError(t, err)
	cfg := quickConfig()
	cfg.QueryTimeout = 5 * time.Second // also enough for the start on a busy machine
	w := startForwarder(t, h, cfg)
	w.publish(t, "orders", "K", "1")
	eventually(t, func() bool { return w.log.count("reading the outbox failed") == 1 }, "it is logged")
	assert.Empty(t, w.payloads())
	require.NoError(t, tx.Commit(t.Context()))
	w.arrives(t, "1")
}

// TestIdsThatAreHandedOutAgain: while messages are being published, their ids are assigned to others before the next
// read, or, if the sequence shows a lower value than before, after it. The others are published as well, and the
// results of the old ones settle none of them. setval leaves the sequence's file as it is, so only its value shows the
// change.
func TestIdsThatAreHandedOutAgain(t *testing.T) {
	parallel(t)
	const setBack = "delete from outbox; select setval('outbox_id_seq', 1, false)"
	for name, way := range map[string]struct {
		again     string
		others    int
		readFirst bool
	}{
		"set back, before the next read": {setBack, 10, false},
		"set back, after it":             {setBack, 10, true},
		"restart":                        {"delete from outbox; alter sequence outbox_id_seq restart", 50, false},
		"restored":                       {dropTables, 50, false},
	} {
		t.Run(name, func(t *testing.T) {
			if way.again != setBack {
				extended(t)
			}
			t.Parallel()
			for kept, retention := range retentions {
				t.Run(kept, func(t *testing.T) {
					t.Parallel()
					cfg := quickConfig()
					cfg.Retention = retention
					url := newMigratedDatabase(t)
					other := newPgxHandle(t, url) // its writes wake no forwarder
					h, gate := newStatementGate(t, url)
					defer gate.releaseAll()
					settled := &settledCounter{}
					h = h.seenBy(t, settled)
					cfg.DisableListen = true
					goOn, goOnToo := make(chan struct{}), make(chan struct{})
					w := startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
						switch msg.Payload[0] {
						case 'o':
							<-goOn
						case 'n':
							<-goOnToo
						}
						return nil
					})
					old := numbered("old", 1, 20)
					w.publish(t, "orders", "", old...)
					w.wait(t, "all are being published", func() bool { return tried(w, old) == 20 })
					reads := gate.holdReads()
					gate.arrives(t, "a read", reads...)

					other.exec(t, way.again)
					if name == "restored" {
						require.NoError(t, makeTables(t.Context(), other.db))
					}
					found := numbered("new", 1, way.others)
					other.publish(t, "orders", "", found...)
					require.Equal(t, way.others, h.count(t, "select max(id)::int from outbox"), "the ids were not assigned again")
					if way.readFirst {
						gate.release(reads...)
						w.wait(t, "the new ones are being published", func() bool { return tried(w, found) == way.others })
					}
					close(goOn)
					w.arrives(t, old...)
					eventually(t, func() bool { return settled.done.Load() == 20 }, "the old ones are settled")
					assert.Equal(t, way.others, h.count(t, "select count(*) from outbox where published_at is null"))

					gate.release(reads...)
					close(goOnToo)
					w.arrives(t, found...)
					w.idle(t)
					assert.Zero(t, h.count(t, "select count(*) from outbox where published_at is null"))
				})
			}
		})
	}
}

// TestEpochsAreUsedOnce: a server that lost its last commits, or was restored, has older epochs. A lane that is
// acquired again gets an epoch that it never had, so a failure recorded under an old epoch charges no message.
func TestEpochsAreUsedOnce(t *testing.T) {
	parallel(t)
	settled := &settledCounter{}
	h, gate := newStatementGate(t, newMigratedDatabase(t))
	defer gate.releaseAll()
	h = h.seenBy(t, settled)
	cfg := quickConfig()
	cfg.QueryTimeout = time.Minute
	failed := gate.hold(sqltext.SettleFailed, 0)
	again := make(chan struct{})
	var tries atomic.Int32
	w := startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "K-1" {
			if tries.Add(1) == 1 {
				return errRefused
			}
			<-again
		}
		return nil
	})
	w.publish(t, "orders", "K", "K-1", "K-2")
	gate.arrives(t, "the failure is about to be settled", failed)
	before := h.count(t, "select max(epoch)::int from outbox_lanes")
	h.exec(t, "with life as (delete from outbox_life) update outbox_lanes set epoch = epoch - 1")
	w.wait(t, "K-1 is tried in the new life", func() bool { return w.triedTimes("K-1") == 2 })
	assert.Greater(t, h.count(t, "select min(epoch)::int from outbox_lanes"), before)
	gate.release(failed)
	eventually(t, func() bool { return settled.failed.Load() == 1 }, "the failure is settled")
	assert.Zero(t, h.count(t, "select count(*) from outbox where attempts > 0"))
	close(again)
	w.arrives(t, "K-1", "K-2")
	assert.Equal(t, numbered("K-", 1, 2), w.payloads("K"))
}
