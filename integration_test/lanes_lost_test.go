package integration_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// TestAForwarderThatVanishesWhileItJoinsKeepsNobodyOut: a forwarder freezes while it holds the lock, and the next one
// gets its lanes soon after.
func TestAForwarderThatVanishesWhileItJoinsKeepsNobodyOut(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	gated, gate := newStatementGate(t, url)
	announce := gate.hold(sqltext.AnnounceForwarder, 0)
	defer gate.releaseAll()
	cfg := quickConfig()
	cfg.QueryTimeout = time.Minute // a process that stands still does not notice its own timeouts
	frozen := newForwarder(t, gated, newFakeBroker(), cfg)
	ended := make(chan error, 1)
	go func() { ended <- frozen.Run(context.Background()) }()
	gate.arrives(t, "it has the lock", announce)
	cfg.QueryTimeout = 20 * time.Second
	h := newPgxHandle(t, url)
	w := startForwarder(t, h, cfg)
	w.publish(t, "orders", "", "1")
	w.arrives(t, "1")
	gate.releaseAll()
	assert.Error(t, within(t, "it ends", ended), "its session is gone")
}

// TestWhoHasTheLockForJoiningIsNamed: a session that is not a forwarder may hold the lock for longer than a starting
// forwarder waits; it is named.
func TestWhoHasTheLockForJoiningIsNamed(t *testing.T) {
	h := onPgx(t)
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	var pid string
	require.NoError(t, tx.QueryRow(t.Context(), "select pg_backend_pid()::text").Scan(&pid))
	_, err = tx.Exec(t.Context(), sqltext.Tables{}.Render(sqltext.LockForwarders))
	require.NoError(t, err)
	cfg := quickConfig()
	cfg.QueryTimeout = 4 * time.Second
	err = newForwarder(t, h, newFakeBroker(), cfg).Run(t.Context())
	require.ErrorContains(t, err, "pg_terminate_backend("+pid+")")
	require.ErrorContains(t, err, "idle in transaction")
}

// TestALeaseIsExtendedWhenLostLanesAreForgotten: a forwarder's lease expired, another one took its lanes, and after
// joining again it cannot read who owns them. Until it can, it publishes none of the messages that it read before.
func TestALeaseIsExtendedWhenLostLanesAreForgotten(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	h, gate := newStatementGate(t, url)
	defer gate.releaseAll()
	other := newPgxHandle(t, url)
	var stolen, unreadable sync.Once
	robbed, hidden, renewals := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1000)
	goOn := make(chan struct{})
	w := startForwarderOn(t, h, shortLease(quickConfig()), func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "K-1" {
			<-goOn
		}
		return nil
	})
	w.publish(t, "orders", "K", "K-1", "K-2") // read together
	w.wait(t, "the first is being published", func() bool { return w.triedTimes("K-1") == 1 })
	sql := func(statements ...string) {
		for _, s := range statements {
			_, err := other.pool.Exec(context.Background(), s)
			assert.NoError(t, err, s)
		}
	}
	gate.onRun(sqltext.Lanes, func() {
		select {
		case <-robbed:
			unreadable.Do(func() {
				sql("alter table outbox_lanes rename to hidden")
				close(hidden)
			})
		default:
		}
	})
	gate.onRun(sqltext.Heartbeat, func() {
		stolen.Do(func() {
			sql(`with thief as (insert into outbox_forwarders (id, scope, topics, name, expires_at, facts)
					values (gen_random_uuid(), 'default', '{}', 'thief', now() + interval '1 hour', '{"lease_ttl": 3600000000000}') returning id)
				update outbox_lanes set owner = thief.id, epoch = epoch + 1 from thief`,
				`update outbox_forwarders set expires_at = clock_timestamp() - interval '1 second' where name <> 'thief'`)
			close(robbed)
		})
		select {
		case <-hidden:
			renewals <- struct{}{}
		default:
		}
	})
	for range 15 {
		<-renewals // each a tenth of the lease apart, without a new plan: by now the old lease has expired
	}
	close(goOn)
	w.arrives(t, "K-1")
	for range 3 {
		<-renewals
	}
	assert.Zero(t, w.triedTimes("K-2"), "calls for a message of another owner's lane")
	sql("alter table hidden rename to outbox_lanes", "delete from outbox_forwarders where name = 'thief'")
	w.arrives(t, "K-2")
}

// TestDeletedLanesAreMadeAgain while forwarders run, and each message is published.
func TestDeletedLanesAreMadeAgain(t *testing.T) {
	h := onPgx(t)
	cfg := sharing(quickConfig())
	w := startForwarder(t, h, cfg)
	w.join(t, h, cfg)
	before := numbered("before", 1, 100)
	w.publish(t, "orders", "", before...)
	w.arrives(t, before...)
	h.exec(t, "delete from outbox_lanes where lane % 3 > 0")
	after := numbered("after", 1, 200)
	w.publish(t, "orders", "", after...)
	w.arrives(t, after...)
	h.exec(t, "insert into outbox_lanes (scope, lane) select scope, 64 from outbox_lanes limit 1") // invalid lane
	h.exec(t, "delete from outbox_lanes where lane < 64")
	last := numbered("last", 1, 200)
	w.publish(t, "orders", "", last...)
	w.arrives(t, last...)
	assert.Equal(t, 64, h.count(t, "select count(*) from outbox_lanes where owner is not null and lane < 64"))
}

// TestClockSetBack: a forwarder died, and the clock of the database went back by a day. Its lanes are free when the
// others have seen its lease unchanged for the lease's duration; live forwarders keep theirs.
func TestClockSetBack(t *testing.T) {
	h := onPgx(t)
	const dead = "00000000-0000-0000-0000-00000000dead"
	h.exec(t, sqltext.Tables{}.Render(sqltext.CreateLanes), "default")
	h.exec(t, `insert into outbox_forwarders (id, scope, topics, name, expires_at, facts)
		values ('`+dead+`', 'default', '{}', 'dead', now() + interval '1 day', '{"lease_ttl": 1000000000}'),
		       (gen_random_uuid(), 'another', '{}', 'dead as well', now() + interval '1 day', '{"lease_ttl": 1000000000}')`)
	h.exec(t, "update outbox_lanes set owner = '"+dead+"' where scope = 'default'")
	all := numbered("m", 1, 100)
	h.publish(t, "orders", "", all...)
	cfg := sharing(quickConfig())
	w := startForwarder(t, h, cfg)
	w.arrives(t, all...)

	cfg.Name = "alive"
	w.join(t, h, cfg)
	lives := "select count(*) from outbox_forwarders where expires_at > now()"
	// the state after a clock is set back
	h.exec(t, "update outbox_forwarders set expires_at = expires_at + interval '1 hour' where expires_at > now()")
	h.reaches(t, 0, "both renew their leases",
		"select count(*) from outbox_forwarders where expires_at > now() + interval '1 minute'")
	assert.Equal(t, 2, h.count(t, lives))
	h.reaches(t, 64, "they have all lanes",
		"select count(*) from outbox_lanes l join outbox_forwarders f on f.id = l.owner "+
			"and f.name <> 'dead'")
}

// TestTopicsThatNoIndexHolds are refused when they are written, because a failure of one could not be recorded. The
// longest allowed topic is shown when it fails and when it is dead.
func TestTopicsThatNoIndexHolds(t *testing.T) {
	h := onPgx(t)
	const random = "(select string_agg(md5(i::text), '') from generate_series(1, 300) i)" // does not compress
	insert := "insert into outbox (uuid, topic, key, payload) values ('1', left(" + random + ", %d), 'K', '')"
	_, err := h.pool.Exec(t.Context(), strings.ReplaceAll(insert, "%d", "9000"))
	assert.Equal(t, "23514", text.SQLState(err), "%v", err)
	_, err = h.pool.Exec(t.Context(), strings.ReplaceAll(insert, "%d", "1024"))
	require.NoError(t, err)
	cfg := quickConfig()
	cfg.MaxAttempts, cfg.MinDeadAge = 2, -1
	startForwarderOn(t, h, cfg, func(string, *message.Message) error { return errRefused })
	h.reaches(t, 1, "it fails and dies", "select count(*) from outbox where attempts = 2 and dead_at is not null")
}

// settledCounter is an observer that counts messages settled as published and as failed.
type settledCounter struct {
	deaf
	done, failed atomic.Int64
}

func (c *settledCounter) SettleEnd(_ context.Context, end meter.SettleEnd) {
	c.done.Add(int64(end.Done))
	c.failed.Add(int64(end.Failed))
}

// deaf is an engine observer that does nothing.
type deaf struct{}

func (deaf) ReadEnd(context.Context, meter.ReadEnd)       {}
func (deaf) SettleEnd(context.Context, meter.SettleEnd)   {}
func (deaf) CleanEnd(context.Context, meter.CleanEnd)     {}
func (deaf) LanesOwned(context.Context, meter.LanesOwned) {}

// TestStandbyIsNotRead turns the server into a standby under a forwarder that has messages to publish, and promotes it.
func TestStandbyIsNotRead(t *testing.T) {
	extended(t)
	parallel(t)
	server, h := ownMigratedServer(t)
	reads := make(chan error, 1000)
	cfg := quickConfig()
	h = h.seenBy(t, readErrors{errs: reads})
	w := startForwarderOn(t, h, cfg, nil)
	w.publish(t, "orders", "K", "K-1")
	w.arrives(t, "K-1")
	w.answers(func(string, *message.Message) error { return errRefused })
	w.publish(t, "orders", "K", "K-2", "K-3")
	w.wait(t, "K-2 is tried", func() bool { return w.triedTimes("K-2") > 0 })

	dir := value[string](t, h, "show data_directory")
	require.NoError(t, server.Stop())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "standby.signal"), nil, 0o644))
	require.NoError(t, server.Restart(t.Context()))
	h.pool.Reset()
	require.True(t, value[bool](t, h, "select pg_is_in_recovery()"))

	deadline := time.After(patience)
	for refused := 0; refused < 3; {
		select {
		case err := <-reads: // reads from before may remain
			require.False(t, err == nil && refused > 0, "a read of a standby succeeded")
			if err != nil && strings.Contains(err.Error(), "connected to a standby") {
				refused++
			}
		case <-deadline:
			t.Fatal("the standby is not refused")
		}
	}
	assert.Equal(t, []string{"K-1"}, w.payloads())
	other, err := forwarder.New(h.db, newFakeBroker(), quickConfig(), w.log)
	require.NoError(t, err)
	require.ErrorContains(t, other.Run(t.Context()), "standby")

	w.answers(nil)
	require.True(t, value[bool](t, h, "select pg_promote()"))
	w.arrives(t, "K-2", "K-3")
	assert.Equal(t, numbered("K-", 1, 3), w.payloads())
}

// readErrors is an observer that passes on the results of reads.
type readErrors struct {
	deaf
	errs chan error
}

func (r readErrors) ReadEnd(_ context.Context, end meter.ReadEnd) {
	select {
	case r.errs <- end.Err:
	default:
	}
}
