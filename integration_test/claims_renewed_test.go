package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/watermill-outbox/queue"
)

// lockWaits counts the sessions that wait for another's lock.
const lockWaits = "select count(*) from pg_stat_activity where datname = current_database() " +
	"and wait_event_type = 'Lock'"

// TestSettlingARenewedMessage: a message is settled even if its row changes while the settlement waits for it.
func TestSettlingARenewedMessage(t *testing.T) {
	h := onPgx(t)
	store, owner := newStore(t, h, queue.StoreConfig{}), queue.NewOwner()
	for name, settle := range map[string]func(ids ...queue.ID) (int, error){
		"ack": func(ids ...queue.ID) (int, error) { return store.Ack(t.Context(), owner, ids...) },
		"abandon": func(ids ...queue.ID) (int, error) {
			return store.Abandon(t.Context(), queue.Abandon{Owner: owner}, ids...)
		},
		"fail":    func(ids ...queue.ID) (int, error) { return store.Fail(t.Context(), queue.Fail{Owner: owner}, ids...) },
		"release": func(ids ...queue.ID) (int, error) { return store.Release(t.Context(), owner, ids...) },
	} {
		enqueued(t, store, item(name, "a"), item(name, "b"), item(name, "c"))
		ids := idsOf(claimed(t, store, owner, 3))
		require.Len(t, ids, 3)
		end := openTx(t, h, func(ctx context.Context) error {
			ours, err := store.Renew(ctx, queue.Renew{Owner: owner, LeaseTTL: time.Hour}, queue.ID{Source: name, MessageID: "b"})
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
	newEffects(t, h)
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
	store, owner := newStore(t, h, queue.StoreConfig{}), queue.NewOwner()
	gated := []queue.Item{item("shop", "0"), item("shop", "a"), item("shop", "b")}
	for i := range gated {
		gated[i].Topic = "gated"
	}
	var group errgroup.Group
	group.Go(func() error { _, err := store.Enqueue(t.Context(), gated...); return err })
	eventually(t, func() bool { return h.count(t, lockWaits) == 1 }, "the batch has begun, and seen nothing")
	enqueued(t, store, item("shop", "b"), item("shop", "a")) // ids opposite to the order of the rows
	ids := idsOf(claimed(t, store, owner, 2))
	openFirst(true)
	eventually(t, func() bool {
		return h.count(t, "select count(*) from pg_locks where locktype = 'advisory' and granted "+
			"and objid = hashtext('a')::oid") == 1
	}, "it has locked a")
	group.Go(func() error {
		n, err := store.Ack(t.Context(), owner, ids...)
		assert.Equal(t, 2, n)
		return err
	})
	eventually(t, func() bool { return h.count(t, lockWaits) == 2 }, "the ack waits for the batch")
	openLast(true)
	require.NoError(t, group.Wait())
}
