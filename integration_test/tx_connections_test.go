package integration_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

func TestManyTransactionsAtOnce(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		newNotes(t, h)
		pub := newOutboxPublisher(t, h)
		var group errgroup.Group
		for n := range 60 {
			group.Go(func() error {
				err := inTx(t, h, func(ctx context.Context) error {
					if err := note(ctx, h, n); err != nil {
						return err
					}
					if err := (*core.Publisher)(pub).Capture(ctx, fmt.Sprint(n), newMessage("")); err != nil {
						return err
					}
					if n%3 == 0 {
						return errUndo
					}
					return nil
				})
				if n%3 == 0 && errors.Is(err, errUndo) {
					return nil
				}
				return err
			})
		}
		require.NoError(t, group.Wait())
		assert.Len(t, notes(t, h), 40)
		assert.Equal(t, 40, h.count(t, "select count(*) from outbox o join notes on topic = n::text"))
	})
}

func TestTransactionsThroughPgBouncer(t *testing.T) {
	t.Parallel()
	var made bool
	forEachPgBouncerHandle(t, func(t *testing.T, h handle) {
		if !made {
			newNotes(t, h)
			made = true
		}
		h.exec(t, "truncate notes, outbox")
		pub := newOutboxPublisher(t, h)
		for n := range 10 {
			require.NoError(t, inTx(t, h, func(ctx context.Context) error {
				require.NoError(t, note(ctx, h, n))
				require.ErrorIs(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error {
					require.NoError(t, (*core.Publisher)(pub).Capture(ctx, "undone", newMessage("")))
					return errors.Join(note(ctx, h, 100+n), errUndo)
				}), errUndo)
				return (*core.Publisher)(pub).Capture(ctx, "captured", newMessage(""))
			}))
			require.ErrorIs(t, inTx(t, h, func(ctx context.Context) error {
				return errors.Join(note(ctx, h, 200+n), errUndo)
			}), errUndo)
			require.ErrorIs(t, inTx(t, h, func(ctx context.Context) error {
				_ = h.execTx(ctx, "rollback")
				return (*core.Publisher)(pub).Capture(ctx, "captured", newMessage(""))
			}), outbox.ErrTxEnded)
			require.ErrorIs(t, inTx(t, h, func(ctx context.Context) error {
				_ = h.execTx(ctx, "select 1/0")
				return (*core.Publisher)(pub).Capture(ctx, "captured", newMessage(""))
			}), pgx.ErrTxCommitRollback)
		}
		assert.Len(t, notes(t, h), 10)
		assert.Len(t, topics(t, h), 10)
	})
}

// TestDedicatedReconnects breaks the connection that the forwarder renews its lease on.
func TestDedicatedReconnects(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		noLeaks(t)
		q, closeIt, err := (*core.DB)(h.db).Dedicated(t.Context())
		require.NoError(t, err)
		t.Cleanup(closeIt)
		pid := func() (pid int, err error) {
			err = drive.Collect(t.Context(), q, func(rows drive.Rows) error {
				return rows.Scan(&pid)
			}, "select pg_backend_pid()")
			return pid, err
		}
		first, err := pid()
		require.NoError(t, err)
		again, err := pid()
		require.NoError(t, err)
		assert.Equal(t, first, again, "one connection")
		// Behind a pooler it may run on the very connection that it ends.
		if _, err := (*core.DB)(h.db).Exec(t.Context(), "select pg_terminate_backend($1::int)", first); err != nil {
			require.Equal(t, "57P01", text.SQLState(err))
		}
		eventually(t, func() bool {
			next, err := pid()
			return err == nil && next != first
		}, "a new connection")
	})
}

func TestTransactCommitsOrRollsBack(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		newNotes(t, h)
		insert := func(fail error) error {
			return (*core.DB)(h.db).Transact(t.Context(), func(q drive.Querier) error {
				_, err := q.Exec(t.Context(), "insert into notes values (1)")
				return errors.Join(err, fail)
			})
		}
		require.ErrorIs(t, insert(errUndo), errUndo)
		require.Panics(t, func() {
			_ = (*core.DB)(h.db).Transact(t.Context(), func(q drive.Querier) error {
				_, _ = q.Exec(t.Context(), "insert into notes values (1)")
				panic("x")
			})
		})
		assert.Empty(t, notes(t, h))
		require.NoError(t, insert(nil))
		assert.Equal(t, []int{1}, notes(t, h))
	})
}

func shortly(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
