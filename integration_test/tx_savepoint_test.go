package integration_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// TestNestedInTxRunOneAtATime has two of them overlap. With savepoints that are not within each other, one would undo
// the work of the other.
func TestNestedInTxRunOneAtATime(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		newNotes(t, h)
		require.NoError(t, inTx(t, h, func(ctx context.Context) error {
			aIsOpen, bIsDone, a := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			go func() {
				a <- core.InTx(ctx, (*core.DB)(h.db), core.TxOptions{}, func(ctx context.Context) error {
					// as TxConfig.JoinContext has it
					if err := note(ctx, h, 1); err != nil {
						return err
					}
					close(aIsOpen)
					<-bIsDone
					return errUndo
				})
			}()
			<-aIsOpen
			b := outbox.InTx(ctx, h.db, func(ctx context.Context) error { return note(ctx, h, 2) })
			close(bIsDone)
			require.ErrorIs(t, b, outbox.ErrTxBusy, "refused, and not undone in silence")
			require.ErrorIs(t, <-a, errUndo)

			require.NoError(t, outbox.InTx(ctx, h.db, func(inner context.Context) error {
				require.ErrorIs(t, outbox.InTx(ctx, h.db, func(context.Context) error { return nil }), outbox.ErrTxBusy,
					"the context of the outer one")
				return outbox.InTx(inner, h.db, func(ctx context.Context) error { return note(ctx, h, 3) })
			}))
			return outbox.InTx(ctx, h.db, func(ctx context.Context) error { return note(ctx, h, 4) })
		}))
		assert.Equal(t, []int{3, 4}, notes(t, h))

		goOn, nested := make(chan struct{}), make(chan error, 1)
		err := inTx(t, h, func(ctx context.Context) error {
			begun := make(chan struct{})
			go func() {
				nested <- core.InTx(ctx, (*core.DB)(h.db), core.TxOptions{}, func(context.Context) error {
					close(begun)
					<-goOn
					return nil
				})
			}()
			<-begun
			return note(ctx, h, 5)
		})
		close(goOn)
		require.ErrorIs(t, err, outbox.ErrTxBusy, "half of a nested one would be committed")
		require.Error(t, <-nested)
		assert.Equal(t, []int{3, 4}, notes(t, h))
	})
}

// TestWhatIsCapturedIsUndoneWithASavepoint of InTx, or of the user's code, and else kept in order.
func TestWhatIsCapturedIsUndoneWithASavepoint(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		pub := newOutboxPublisher(t, h)
		capture := func(ctx context.Context, topic string) {
			t.Helper()
			require.NoError(t, (*core.Publisher)(pub).Capture(ctx, topic, newMessage("")))
		}
		require.NoError(t, inTx(t, h, func(ctx context.Context) error {
			capture(ctx, "1")
			require.NoError(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error {
				capture(ctx, "2")
				return nil
			}))
			capture(ctx, "3")
			return nil
		}))
		assert.Equal(t, []string{"1", "2", "3"}, topics(t, h))
		h.exec(t, "delete from outbox")

		require.NoError(t, inTx(t, h, func(ctx context.Context) error {
			capture(ctx, "before")
			require.NoError(t, h.execTx(ctx, "SavePoint mine"))
			capture(ctx, "undone")
			require.NoError(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error {
				capture(ctx, "undone too")
				return nil
			}))
			require.NoError(t, h.execTx(ctx, "rollback to mine"))
			capture(ctx, "after")
			return nil
		}))
		assert.ElementsMatch(t, []string{"before", "after"}, topics(t, h))

		if h.pool == nil {
			return
		}
		h.exec(t, "delete from outbox")
		require.NoError(t, inPgxTx(t, h, func(ctx context.Context, tx pgx.Tx) error {
			require.ErrorIs(t, pgx.BeginFunc(ctx, tx, func(pgx.Tx) error { capture(ctx, "undone"); return errUndo }), errUndo)
			require.NoError(t, pgx.BeginFunc(ctx, tx, func(pgx.Tx) error { capture(ctx, "kept"); return nil }))
			_, err := tx.Conn().Exec(ctx, "savepoint x")
			require.NoError(t, err)
			capture(ctx, "undone through the connection")
			_, err = tx.Conn().Exec(ctx, "rollback to x")
			require.NoError(t, err)
			return nil
		}))
		assert.Equal(t, []string{"kept"}, topics(t, h))
	})
}

// TestCapturingTakesNoSecondTransactionID looks at who wrote the row: a savepoint would have an id of its own.
func TestCapturingTakesNoSecondTransactionID(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		newNotes(t, h)
		pub := newOutboxPublisher(t, h)
		require.NoError(t, inTx(t, h, func(ctx context.Context) error {
			return errors.Join(note(ctx, h, 1), (*core.Publisher)(pub).Capture(ctx, "captured", newMessage("")))
		}))
		assert.Equal(t, 1, h.count(t, "select count(*) from outbox o join notes n on o.xmin = n.xmin"))
	})
}

// TestOpenRowsAreNamed leaves the rows of a query open.
func TestOpenRowsAreNamed(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		pub := newOutboxPublisher(t, h)
		query := func(ctx context.Context) (next func() bool, closeIt func()) {
			const many = "select repeat('x', 10000) from generate_series(1, 10000)"
			if h.sql != nil {
				tx, err := outbox.SQLTx(ctx)
				require.NoError(t, err)
				rows, err := tx.QueryContext(ctx, many)
				require.NoError(t, err)
				return rows.Next, func() { _ = rows.Close() }
			}
			tx, err := outbox.PgxTx(ctx)
			require.NoError(t, err)
			rows, err := tx.Query(ctx, many)
			require.NoError(t, err)
			return rows.Next, rows.Close
		}
		for _, publishes := range []bool{true, false} {
			err := inTx(t, h, func(ctx context.Context) error {
				next, closeIt := query(ctx)
				t.Cleanup(closeIt)
				require.True(t, next())
				if publishes {
					return pub.PublishContext(ctx, "topic", newMessage(""))
				}
				return nil
			})
			require.Error(t, err)
			assert.Contains(t, fmt.Sprint(err), "close them", "publishes: %v", publishes)
		}
		require.NoError(t, publishInTx(t, h, pub, "topic", newMessage("")), "the pool is well")
	})
}
