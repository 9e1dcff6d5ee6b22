package integration_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestClaimedOnceByMany: eight claimers with three kinds of handles share messages while others are stored. Each
// message is claimed once.
func TestClaimedOnceByMany(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	const n = 2000
	var mu sync.Mutex
	times := map[queue.ID]int{}
	claimedAll := func() bool { mu.Lock(); defer mu.Unlock(); return len(times) == n }
	var group errgroup.Group
	handles := openHandles(t, url)
	for i := range 8 {
		store, owner := storeOn(t, handles[i%len(handles)], queue.StoreConfig{}), queue.NewOwner()
		group.Go(func() error {
			for deadline := time.Now().Add(patience); !claimedAll(); {
				msgs, err := store.Claim(t.Context(), queue.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: 40})
				if err != nil {
					return err
				}
				mu.Lock()
				for _, msg := range msgs {
					times[msg.ID]++
				}
				mu.Unlock()
				acked, err := store.Ack(t.Context(), owner, idsOf(msgs)...)
				if err != nil || acked != len(msgs) {
					return fmt.Errorf("acked %d of %d: %w", acked, len(msgs), err)
				}
				if time.Now().After(deadline) {
					return fmt.Errorf("%d are missing", n-len(times))
				}
			}
			return nil
		})
	}
	writer := storeOn(t, handles[0], queue.StoreConfig{})
	all := numberedItems("shop", n)
	for i := 0; i < n; i += 100 {
		storeAll(t, writer, all[i:i+100]...)
	}
	require.NoError(t, group.Wait())
	for id, k := range times {
		require.Equal(t, 1, k, "%v", id)
	}
}

// TestStaleOwnerChangesNothing: a lease expired and the message has another owner. Calls of the first owner, inside a
// transaction or not, change nothing and return an error. Until the expired lease is reaped, they still count.
func TestStaleOwnerChangesNothing(t *testing.T) {
	h := onPgx(t)
	x := ibx{handle: h, store: storeOn(t, h, queue.StoreConfig{}), name: "stale", owner: queue.NewOwner()}
	x.has(t, "late")
	x.lapse(t, "late")
	settles(t, 1)(x.store.Ack(t.Context(), x.owner, x.id("late")))

	id := x.has(t, "a")
	x.lapse(t, "a")
	x.reap(t)
	x.due(t, "a")
	other := queue.NewOwner()
	require.Len(t, x.claimDueOf(t, other), 1)
	before := x.column(t, "a", "inbox_queue")
	for name, call := range map[string]func(ctx context.Context) (int, error){
		"ack":     func(ctx context.Context) (int, error) { return x.store.Ack(ctx, x.owner, id) },
		"abandon": func(ctx context.Context) (int, error) { return x.store.Abandon(ctx, x.owner, "", 0, id) },
		"fail":    func(ctx context.Context) (int, error) { return x.store.Fail(ctx, x.owner, "", id) },
		"release": func(ctx context.Context) (int, error) { return x.store.Release(ctx, x.owner, id) },
		"renew": func(ctx context.Context) (int, error) {
			ours, err := x.store.Renew(ctx, x.owner, time.Hour, id)
			return len(ours), err
		},
	} {
		settles(t, 0)(call(t.Context()))
		require.NoError(t, outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
			settles(t, 0)(call(ctx))
			return nil
		}), name)
		assert.Equal(t, before, x.column(t, "a", "inbox_queue"), name)
	}
	settles(t, 1)(x.store.Ack(t.Context(), other, id))
}

func (x ibx) claimDueOf(t testing.TB, owner queue.Owner) (msgs []queue.Message) {
	t.Helper()
	x.owner = owner
	return x.claimDue(t)
}

// TestBatchWithTwins: the same ID twice in a call is one message with the later content.
func TestBatchWithTwins(t *testing.T) {
	h := onPgx(t)
	x := ibx{handle: h, store: storeOn(t, h, queue.StoreConfig{}), name: "twins", owner: queue.NewOwner()}
	first, second := x.item("a"), x.item("a")
	second.Payload, second.Topic = []byte("second"), "other"
	want := []queue.EnqueueResult{
		{ID: x.id("a"), Result: queue.New}, {ID: x.id("b"), Result: queue.New}, {ID: x.id("a"), Result: queue.Updated},
	}
	assert.Equal(t, want, x.put(t, first, x.item("b"), second))
	assert.Equal(t, []byte("second"), x.get(t, "a").Payload)
	assert.Equal(t, "other", x.get(t, "a").Topic)
}

// TestOverlappingBatches: eight workers store the same 1,000 messages in eight orders without deadlock.
func TestOverlappingBatches(t *testing.T) {
	extended(t)
	h := onPgx(t)
	store := storeOn(t, h, queue.StoreConfig{})
	all := numberedItems("shop", 1000)
	var group errgroup.Group
	for i := range 8 {
		mine := append(append([]queue.Item{}, all[i*125:]...), all[:i*125]...)
		if i%2 == 1 {
			for a, b := 0, len(mine)-1; a < b; a, b = a+1, b-1 {
				mine[a], mine[b] = mine[b], mine[a]
			}
		}
		group.Go(func() error {
			_, err := store.Enqueue(t.Context(), mine...)
			return err
		})
	}
	require.NoError(t, group.Wait())
	assert.Equal(t, 1000, h.count(t, "select count(*) from inbox_queue"))
}

// TestEnqueueOfARunningMessage: storing a copy of a message whose handler has acked it in an open transaction neither
// waits nor changes anything.
func TestEnqueueOfARunningMessage(t *testing.T) {
	h := onPgx(t)
	x := ibx{handle: h, store: storeOn(t, h, queue.StoreConfig{}), name: "running", owner: queue.NewOwner()}
	id := x.has(t, "a")
	copied := x.item("a")
	copied.Payload = []byte("copy")
	assert.Equal(t, queue.Busy, x.put(t, copied)[0].Result)
	end := openTx(t, h, func(ctx context.Context) error {
		_, err := x.store.Ack(ctx, x.owner, id)
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stored, err := x.store.Enqueue(ctx, copied, x.item("b"))
	require.NoError(t, err, "it waits for the handler")
	assert.Equal(t, queue.Busy, stored[0].Result)
	assert.Equal(t, queue.New, stored[1].Result)
	assert.False(t, x.processed(t, "a", nil))
	ours, err := x.store.Renew(ctx, x.owner, time.Minute, id)
	require.NoError(t, err, "it waits for the handler")
	assert.Empty(t, ours)
	end(true)
	assert.Equal(t, queue.Done, x.get(t, "a").State)
	assert.Equal(t, queue.AlreadyDone, x.put(t, copied)[0].Result)
	assert.True(t, x.processed(t, "a", nil))
}

// TestAckAgainstEnqueue: batches that are stored again, in the order of their IDs, and batches that are settled, in the
// order of their rows, do not deadlock.
func TestAckAgainstEnqueue(t *testing.T) {
	h := onPgx(t)
	store, owner := storeOn(t, h, queue.StoreConfig{MaxAttempts: -1}), queue.NewOwner()
	all := numberedItems("shop", 300)
	for i := len(all) - 1; i >= 0; i -= 50 { // ids opposite to the order of the rows
		storeAll(t, store, all[i-49:i+1]...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var group errgroup.Group
	for range 3 {
		group.Go(func() error {
			for ctx.Err() == nil {
				if _, err := store.Enqueue(t.Context(), all...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for range 3 {
		group.Go(func() error {
			for ctx.Err() == nil {
				msgs, err := store.Claim(t.Context(), queue.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: 100})
				if err == nil {
					_, err = store.Abandon(t.Context(), owner, "", time.Millisecond, idsOf(msgs)...)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
}

// TestExpiredLeaseNoDeadlock: claimers whose leases expire, under constant reaping. Reaping locks in the order of the
// rows, acks in the opposite order.
func TestExpiredLeaseNoDeadlock(t *testing.T) {
	extended(t)
	h := onPgx(t)
	shortLeases(t, h)
	store := storeOn(t, h, queue.StoreConfig{MaxAttempts: -1, Backoff: outbox.Backoff{Initial: -1}})
	all := numberedItems("shop", 10_000)
	slices.Reverse(all)
	storeAll(t, store, all...)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	reaping, giveUp := context.WithTimeout(t.Context(), patience) // until a message has been reaped
	defer giveUp()
	var group errgroup.Group
	var mu sync.Mutex
	acked := 0
	var reaped atomic.Int64
	for i := range 8 {
		owner := queue.NewOwner()
		group.Go(func() error {
			for round := 0; ctx.Err() == nil || reaping.Err() == nil; round++ {
				msgs, err := store.Claim(t.Context(), queue.Claim{Owner: owner, LeaseTTL: time.Second, Limit: 50})
				if err != nil {
					return err
				}
				n, err := store.ReapExpired(t.Context())
				if err != nil {
					return err
				}
				if reaped.Add(int64(n)) > 0 {
					giveUp()
				}
				k, err := store.Ack(t.Context(), owner, idsOf(msgs[:len(msgs)*(1+(i+round)%2)/2])...)
				if err != nil {
					return err
				}
				mu.Lock()
				acked += k
				mu.Unlock()
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	assert.Positive(t, reaped.Load(), "leases that ran out")
	assert.Equal(t, acked, h.count(t, "select count(*) from inbox_queue where state = 'done'"),
		"each ack reported as successful counts")
}
