package integration_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestClaimWithoutAnswer: a claim was committed but its reply was lost. Its messages are unknown to the owner, so they
// are not handled. They are released before the lease expires, without a charge: nothing has failed.
func TestClaimWithoutAnswer(t *testing.T) {
	parallel(t)
	for kind, open := range map[string]func(testing.TB, string) handle{
		"pgx": newPgxHandle, "sql": func(t testing.TB, url string) handle { return newSQLHandle(t, "pgx", url) },
	} {
		h := newPgxHandle(t, newMigratedDatabase(t))
		proxy := newProxy(t, h.url)
		far := open(t, proxy.url)
		near := storeOn(t, h, quickStore())
		stored := append(items("orders", 3), items("calls", 3)...)
		cfg := quickDispatcher(map[string]queue.Handler{
			"orders": {Handle: applying(far)},
			"calls":  {Handle: applying(far), Concurrency: 2}, // claims separately
		})
		cfg.LeaseTTL = time.Hour // so nothing is reaped
		cfg.DisableListen = true
		proxy.cutAtAnswer.Store(&stored[0].Topic)
		storeAll(t, near, stored...)
		dispatching(t, storeOn(t, far, quickStore()), cfg)
		for _, item := range stored {
			untilState(t, near, item.ID, queue.Done)
		}
		assert.EqualValues(t, 1, proxy.cuts.Load())
		assert.Zero(t, h.count(t, "select sum(attempts + crashes) from inbox_queue"), "%s: an attempt was charged", kind)
		assert.Equal(t, len(stored), h.count(t, "select count(*) from effects"), kind)
	}
}

// TestClaimCommittedAfterItsEnd: the server commits a claim after the client has abandoned it and searched for its
// messages.
func TestClaimCommittedAfterItsEnd(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `create function wait() returns trigger language plpgsql as $$
		begin
			loop -- the client tries to cancel it, perhaps more than once
				begin
					perform pg_advisory_xact_lock(1);
					return new;
				exception when query_canceled then
				end;
			end loop;
		end $$`)
	h.exec(t, `create trigger wait before update on inbox_queue for each row
		when (old.owner is null and new.owner is not null and old.due_at is null) execute function wait()`)
	lock, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer lock.Rollback(t.Context())
	_, err = lock.Exec(t.Context(), "select pg_advisory_xact_lock(1)")
	require.NoError(t, err)

	var connections atomic.Pointer[chan struct{}]
	cutting := make(chan struct{})
	connections.Store(&cutting)
	proxied := startProxy(t, h.url, passOn, func(client, server net.Conn, over <-chan struct{}) {
		cut, ended := *connections.Load(), make(chan struct{})
		go func() {
			defer close(ended)
			passOn(client, server, over)
		}()
		select {
		case <-ended:
		case <-cut:
		}
	})
	near := storeOn(t, h, quickStore())
	far := newPgxHandle(t, proxied)
	storeAll(t, near, items("orders", 1)...)
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: applying(far)}, "later": {Handle: applying(far)}})
	cfg.DisableListen = true
	dispatching(t, storeOn(t, far, quickStore()), cfg)
	h.reaches(t, 1, "the claim waits", "select count(*) from pg_stat_activity where datname = current_database() "+
		"and wait_event = 'advisory'")
	whole := make(chan struct{})
	connections.Store(&whole)
	close(cutting)
	// It continues, so it has searched for lost claims.
	h.exec(t, `insert into inbox_queue (source, message_id, topic, state, due_at) values ('test', 'later', `+
		`'later', 'processing', now())`)
	untilState(t, near, queue.ID{Source: "test", MessageID: "later"}, queue.Done)
	require.NoError(t, lock.Rollback(t.Context()))
	untilState(t, near, itemID("orders", 0), queue.Done)
	assert.Zero(t, h.count(t, "select sum(attempts + crashes) from inbox_queue"), "an attempt was charged")
	assert.Equal(t, 2, h.count(t, "select count(*) from effects"))
}

// TestClaimedWhileItIsGivenBack: a message is released after a failure and claimed again by this process before the
// reply arrives. It is handled again, without waiting for the end of its lease and without a charge for that.
func TestClaimedWhileItIsGivenBack(t *testing.T) {
	parallel(t)
	h, gate := newStatementGate(t, newMigratedDatabase(t))
	defer gate.releaseAll()
	s := storeOn(t, h, quickStore())
	var calls atomic.Int32
	cfg := quickDispatcher(map[string]queue.Handler{
		"orders": {Detached: true, Handle: func(context.Context, *queue.Message) error {
			if calls.Add(1) == 1 {
				return errHandler
			}
			return nil
		}},
	})
	cfg.LeaseTTL = time.Hour
	answer := gate.holdResult(sqltext.AbandonMessages)
	storeAll(t, s, items("orders", 1)...)
	dispatching(t, s, cfg)
	gate.arrives(t, "the message is released", answer)
	h.reaches(t, 1, "it is claimed again", "select count(*) from inbox_queue where owner is not null")
	storeAll(t, s, items("orders", 2)[1])
	untilState(t, s, itemID("orders", 1), queue.Done) // so that claim has ended
	gate.release(answer)
	untilState(t, s, itemID("orders", 0), queue.Done)
	_, attempts := stateOf(t, s, itemID("orders", 0))
	assert.Equal(t, 1, attempts, "the charge of the failure")
	assert.EqualValues(t, 3, calls.Load())
}

// TestFailureIsChargedOnce: the reply to a charge is lost, so the charge is repeated after this process has claimed the
// message again.
func TestFailureIsChargedOnce(t *testing.T) {
	parallel(t)
	near := newPgxHandle(t, newMigratedDatabase(t))
	proxy := newProxy(t, near.url)
	h, gate := newStatementGate(t, proxy.url)
	defer gate.releaseAll()
	s := storeOn(t, near, quickStore())
	var calls atomic.Int32
	answer := "UPDATE 1"
	cfg := quickDispatcher(map[string]queue.Handler{
		"orders": {Detached: true, Handle: func(context.Context, *queue.Message) error {
			if calls.Add(1) == 1 {
				proxy.cutAtAnswer.Store(&answer)
				return errHandler
			}
			return nil
		}},
	})
	cfg.LeaseTTL, cfg.DisableListen = time.Hour, true
	repeated := gate.hold(sqltext.AbandonMessages, 1)
	storeAll(t, s, items("orders", 1)...)
	dispatching(t, storeOn(t, h, quickStore()), cfg)
	gate.arrives(t, "the charge is repeated", repeated)
	near.reaches(t, 1, "it was charged, and is claimed again",
		"select count(*) from inbox_queue where owner is not null and attempts = 1")
	storeAll(t, s, items("orders", 2)[1])
	untilState(t, s, itemID("orders", 1), queue.Done) // so that claim has ended
	gate.release(repeated)
	untilState(t, s, itemID("orders", 0), queue.Done)
	_, attempts := stateOf(t, s, itemID("orders", 0))
	assert.Equal(t, 1, attempts, "the charge of the failure")
	assert.EqualValues(t, 3, calls.Load())
}

// lockWaits counts the sessions that wait for another's lock.
const lockWaits = "select count(*) from pg_stat_activity where datname = current_database() " +
	"and wait_event_type = 'Lock'"

// TestSettlingARenewedMessage: a message is settled even if its row changes while the settlement waits for it.
func TestSettlingARenewedMessage(t *testing.T) {
	h := onPgx(t)
	store, owner := storeOn(t, h, queue.StoreConfig{}), queue.NewOwner()
	for name, settle := range map[string]func(ids ...queue.ID) (int, error){
		"ack": func(ids ...queue.ID) (int, error) { return store.Ack(t.Context(), owner, ids...) },
		"abandon": func(ids ...queue.ID) (int, error) {
			return store.Abandon(t.Context(), owner, "", 0, ids...)
		},
		"fail":    func(ids ...queue.ID) (int, error) { return store.Fail(t.Context(), owner, "", ids...) },
		"release": func(ids ...queue.ID) (int, error) { return store.Release(t.Context(), owner, ids...) },
	} {
		storeAll(t, store, item(name, "a"), item(name, "b"), item(name, "c"))
		ids := idsOf(claimed(t, store, owner, 3))
		require.Len(t, ids, 3)
		end := openTx(t, h, func(ctx context.Context) error {
			ours, err := store.Renew(ctx, owner, time.Hour, queue.ID{Source: name, MessageID: "b"})
			assert.Len(t, ours, 1)
			return err
		})
		var settled errgroup.Group
		n := 0
		settled.Go(func() (err error) { n, err = settle(ids...); return err })
		eventually(t, func() bool { return h.count(t, lockWaits) > 0 }, "%s waits for the renewal", name)
		end(true)
		require.NoError(t, settled.Wait(), name)
		assert.Equal(t, 3, n, name)
		assert.Zero(t, h.count(t, "select count(*) from inbox_queue where owner is not null"), name)
		assert.LessOrEqual(t, h.count(t, "select max(attempts) from inbox_queue"), 1, name)
		h.exec(t, "delete from inbox_queue")
	}
}

// TestHandlingARenewedMessage: the lease is renewed while the handler's transaction waits for the row; the message is
// handled without a charge.
func TestHandlingARenewedMessage(t *testing.T) {
	h := onPgx(t)
	pause := &stopped{came: make(chan struct{}), goOn: make(chan struct{})}
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 1)...)
	goOn := sync.OnceFunc(func() { close(pause.goOn) })
	defer goOn()
	dispatching(t, storeOn(t, h.seenBy(t, pause), quickStore()),
		quickDispatcher(map[string]queue.Handler{"orders": {Handle: applying(h)}}))
	<-pause.came
	end := openTx(t, h, func(ctx context.Context) error {
		return h.execTx(ctx, "update inbox_queue set locked_until = locked_until + interval '1 s'")
	})
	goOn()
	eventually(t, func() bool { return h.count(t, lockWaits) > 0 }, "the ack waits for the renewal")
	end(true)
	untilState(t, s, itemID("orders", 0), queue.Done)
	_, attempts := stateOf(t, s, itemID("orders", 0))
	assert.Zero(t, attempts)
}

// TestAckAgainstInsertion: a batch finds that another one has inserted some of its messages since it began, and that
// these are claimed and being acked. It waits for the ack while holding rows that the ack waits for, unless both lock
// in one order.
func TestAckAgainstInsertion(t *testing.T) {
	h := onPgx(t)
	// Before a row of the topic is inserted, its transaction takes a lock that the test may hold: a gate at each row.
	h.exec(t, `create function gate() returns trigger language plpgsql as $$ begin
		perform pg_advisory_xact_lock(hashtext(new.message_id)); return new; end $$`)
	h.exec(t, `create trigger gate before insert on inbox_queue for each row `+
		`when (new.topic = 'gated') execute function gate()`)
	gate := func(id string) (open func(bool)) {
		return openTx(t, h, func(ctx context.Context) error {
			return h.execTx(ctx, "select pg_advisory_xact_lock(hashtext($1))", id)
		})
	}
	openFirst, openLast := gate("0"), gate("b")
	store, owner := storeOn(t, h, queue.StoreConfig{}), queue.NewOwner()
	gated := []queue.Item{item("shop", "0"), item("shop", "a"), item("shop", "b")}
	for i := range gated {
		gated[i].Topic = "gated"
	}
	var group errgroup.Group
	group.Go(func() error { _, err := store.Enqueue(t.Context(), gated...); return err })
	eventually(t, func() bool { return h.count(t, lockWaits) == 1 }, "the batch has begun, and seen nothing")
	storeAll(t, store, item("shop", "b"), item("shop", "a")) // ids opposite to the order of the rows
	ids := idsOf(claimed(t, store, owner, 2))
	openFirst(true)
	h.reaches(t, 1, "it has locked a", "select count(*) from pg_locks where locktype = 'advisory' and granted "+
		"and objid = hashtext('a')::oid")
	group.Go(func() error {
		n, err := store.Ack(t.Context(), owner, ids...)
		assert.Equal(t, 2, n)
		return err
	})
	eventually(t, func() bool { return h.count(t, lockWaits) == 2 }, "the ack waits for the batch")
	openLast(true)
	require.NoError(t, group.Wait())
}

// TestARenewalThatHangsIsTriedAgain: a renewal without a reply is abandoned after a third of the lease, so that the
// next one keeps the lease and the handler continues.
func TestARenewalThatHangsIsTriedAgain(t *testing.T) {
	parallel(t)
	h, gate := newStatementGate(t, newMigratedDatabase(t))
	defer gate.releaseAll()
	other := newPgxHandle(t, h.url)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 1)...)
	var runs int
	tries := []chan struct{}{nil, make(chan struct{}), make(chan struct{})}
	begun, ended := make(chan struct{}), make(chan error, 1)
	gate.onRun(sqltext.RenewLeases, func() {
		if runs < len(tries) && tries[runs] != nil {
			close(tries[runs])
		}
		runs++
	})
	cfg := quickDispatcher(map[string]queue.Handler{
		"orders": {Detached: true, Timeout: -1, Handle: func(ctx context.Context, _ *queue.Message) error {
			close(begun)
			select {
			case <-tries[2]: // by now the original lease has expired
			case <-ctx.Done():
			}
			ended <- context.Cause(ctx)
			return ctx.Err()
		}},
	})
	cfg.LeaseTTL = 6 * time.Second
	dispatching(t, s, cfg)
	within(t, "the message", begun)
	end := openTx(t, other, func(ctx context.Context) error { return other.execTx(ctx, "lock table inbox_queue") })
	unlock := sync.OnceFunc(func() { end(false) })
	defer unlock()
	select {
	case <-tries[1]: // the second attempt, while the first has had no reply
	case err := <-ended:
		require.NoError(t, err)
	}
	unlock()
	require.NoError(t, within(t, "the handler's end", ended))
	untilState(t, s, itemID("orders", 0), queue.Done)
}
