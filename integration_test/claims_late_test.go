package integration_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

// numberedItems returns n items to store.
func numberedItems(source string, n int) []queue.Item {
	all := make([]queue.Item, n)
	for i := range all {
		all[i] = item(source, fmt.Sprintf("%06d", i))
	}
	return all
}

func enqueued(t testing.TB, store *queue.Store, items ...queue.Item) {
	t.Helper()
	_, err := store.Enqueue(t.Context(), items...)
	require.NoError(t, err)
}

// idsOf returns the IDs of messages.
func idsOf(msgs []queue.Message) []queue.ID {
	ids := make([]queue.ID, len(msgs))
	for i, msg := range msgs {
		ids[i] = msg.ID
	}
	return ids
}

// openTx runs fn in a transaction, which end commits or rolls back.
func openTx(t testing.TB, h handle, fn func(ctx context.Context) error) (end func(commit bool)) {
	t.Helper()
	done, goOn, ended := make(chan struct{}), make(chan bool, 1), make(chan error, 1)
	go func() {
		ended <- outbox.InTx(context.WithoutCancel(t.Context()), h.db, func(ctx context.Context) error {
			err := fn(ctx)
			close(done)
			if commit := <-goOn; err == nil && !commit {
				err = errTakenBack
			}
			return err
		})
	}()
	<-done
	return func(commit bool) {
		t.Helper()
		goOn <- commit
		if err := <-ended; commit {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, errTakenBack)
		}
	}
}

// TestLateEnqueueIsClaimed: a message whose transaction commits after thousands with higher ids were claimed is claimed
// immediately, even if the transaction was open for longer than the cursor waits for it.
func TestLateEnqueueIsClaimed(t *testing.T) {
	h := onPgx(t)
	store, writer, owner := newStore(t, h, queue.StoreConfig{}), newStore(t, h, queue.StoreConfig{}), queue.NewOwner()
	for _, open := range []time.Duration{0, 1500 * time.Millisecond} {
		name := fmt.Sprint("late ", open)
		end := openTx(t, h, func(ctx context.Context) error {
			_, err := writer.Enqueue(ctx, item(name, "late"))
			return err
		})
		began := time.Now()
		enqueued(t, writer, numberedItems(name, 5000)...)
		for done := 0; done < 5000 || time.Since(began) < open; {
			msgs := claimed(t, store, owner, 500)
			n, err := store.Ack(t.Context(), owner, idsOf(msgs)...)
			require.NoError(t, err)
			done += n
		}
		end(true)
		committed, looks := time.Now(), 0
		eventually(t, func() bool {
			looks++
			msgs := claimed(t, store, owner, 500)
			return len(msgs) == 1 && msgs[0].ID.MessageID == "late"
		}, "the late message is claimed")
		t.Logf("open for %s and more: claimed %s after its commit, by claim %d", open, time.Since(committed), looks)
	}
}

// TestSeenAgainIsNotLost: a row that was locked when the cursor passed it is found, whether its transaction commits or
// not.
func TestSeenAgainIsNotLost(t *testing.T) {
	h := onPgx(t)
	for _, commit := range []bool{true, false} {
		for name, lock := range map[string]func(ctx context.Context, store *queue.Store, id queue.ID) error{
			"enqueue": func(ctx context.Context, store *queue.Store, id queue.ID) error {
				_, err := store.Enqueue(ctx, item(id.Source, id.MessageID))
				return err
			},
			"look up": func(ctx context.Context, store *queue.Store, id queue.ID) error {
				_, err := store.AlreadyProcessed(ctx, id, nil)
				return err
			},
			"claim": func(ctx context.Context, store *queue.Store, _ queue.ID) error {
				msgs, err := store.Claim(ctx, queue.Claim{Owner: queue.NewOwner(), LeaseTTL: time.Minute, Limit: 1})
				if err == nil && len(msgs) != 1 {
					err = fmt.Errorf("claimed %d", len(msgs))
				}
				return err
			},
		} {
			if name == "claim" && commit {
				continue // another worker has it
			}
			source := fmt.Sprint(name, commit)
			store, owner := newStore(t, h, queue.StoreConfig{}), queue.NewOwner()
			enqueued(t, store, item(source, "locked"))
			end := openTx(t, h, func(ctx context.Context) error { return lock(ctx, store, item(source, "locked").ID) })
			for i := range 5 { // the cursor advances
				enqueued(t, store, item(source, fmt.Sprint(i)))
				require.Len(t, claimed(t, store, owner, 10), 1)
			}
			end(commit)
			eventually(t, func() bool { return len(claimed(t, store, owner, 10)) == 1 }, "%s is claimed", source)
			h.exec(t, "delete from inbox_queue")
		}
	}
}

// TestNothingGoesBackToReady: no update makes a row ready without a due time, since cursors may have passed it.
func TestNothingGoesBackToReady(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `create function no_way_back() returns trigger language plpgsql as $$ begin
		if new.state = 'processing' and new.due_at is null and (old.due_at is not null or old.state <> 'processing' or old.owner is not null and new.owner is null)
		then raise 'it goes back to ready: % %', old, new; end if; return new; end $$`)
	h.exec(t, `create trigger no_way_back before update on inbox_queue for each row execute function no_way_back()`)
	ctx, owner := t.Context(), queue.NewOwner()
	store := newStore(t, h, queue.StoreConfig{})
	x := ibx{handle: h, store: store, name: "back", owner: owner}
	for i, back := range []func(id queue.ID) error{
		func(id queue.ID) error { _, err := store.Release(ctx, owner, id); return err },
		func(id queue.ID) error { _, err := store.Abandon(ctx, queue.Abandon{Owner: owner}, id); return err },
		func(id queue.ID) error { x.lapse(t, id.MessageID); _, err := store.ReapExpired(ctx); return err },
		func(id queue.ID) error {
			_, _ = store.Fail(ctx, queue.Fail{Owner: owner}, id)
			return store.MarkProcessing(ctx, id)
		},
		func(id queue.ID) error {
			_, _ = store.Release(ctx, owner, id)
			_, err := store.Enqueue(ctx, x.item(id.MessageID))
			return err
		},
	} {
		require.NoError(t, back(x.has(t, fmt.Sprint(i))), "%d", i)
		assert.Equal(t, "true", x.column(t, fmt.Sprint(i), "due_at is not null and owner is null and state = 'processing'"),
			"%d", i)
		x.exec(t, "delete from inbox_queue")
	}
	x.processed(t, "seen", nil)
	enqueued(t, store, x.item("seen"), x.item("twice"))
	enqueued(t, store, x.item("twice"))
	assert.Equal(t, "true", x.column(t, "twice", "due_at is not null"))
	assert.Len(t, claimed(t, store, owner, 10), 2)
}
