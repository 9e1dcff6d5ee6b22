package integration_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

var errUndo = errors.New("undo")

func note(ctx context.Context, h handle, n int) error {
	return h.execTx(ctx, "insert into notes values ($1)", n)
}

func notes(t testing.TB, h handle) []int {
	t.Helper()
	return column[int](t, h, "select n from notes order by n")
}

func topics(t testing.TB, h handle) []string {
	t.Helper()
	return column[string](t, h, "select topic from outbox order by id")
}

func TestNestedInTxIsASavepoint(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		pub := newOutboxPublisher(t, h)
		var hooks []string
		work := func(ctx context.Context, n int) {
			require.NoError(t, note(ctx, h, n))
			require.NoError(t, pub.PublishContext(ctx, fmt.Sprintf("published %d", n), newMessage("")))
			require.NoError(t, (*core.Publisher)(pub).Capture(ctx, fmt.Sprintf("captured %d", n), newMessage("")))
			require.NoError(t, outbox.AfterCommit(ctx, func(context.Context) { hooks = append(hooks, fmt.Sprint(n)) }))
		}
		err := inTx(t, h, func(ctx context.Context) error {
			work(ctx, 1)
			require.ErrorIs(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error { // all rolled back
				work(ctx, 2)
				require.NoError(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error { work(ctx, 3); return nil }))
				return errUndo
			}), errUndo)
			require.NoError(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error { // kept, without the inner one
				work(ctx, 4)
				require.ErrorIs(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error {
					work(ctx, 5)
					return errUndo
				}), errUndo)
				work(ctx, 6)
				return nil
			}))
			require.ErrorIs(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error {
				work(ctx, 7)
				return outbox.SetRollbackOnly(ctx)
			}), outbox.ErrRolledBack)
			require.Panics(t, func() {
				_ = outbox.InTx(ctx, h.db, func(ctx context.Context) error { work(ctx, 8); panic("nested") })
			})
			require.Error(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error { // Postgres refuses a statement
				work(ctx, 9)
				return h.execTx(ctx, "select no_such_column from notes")
			}))
			require.Error(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error { // and its error is swallowed
				work(ctx, 10)
				_ = h.execTx(ctx, "select no_such_column from notes")
				return nil
			}))
			work(ctx, 11)
			assert.Empty(t, hooks, "nothing is committed yet")
			return nil
		})
		require.NoError(t, err)
		assert.Equal(t, []int{1, 4, 6, 11}, notes(t, h))
		want := []string{
			"published 1", "published 4", "published 6", "published 11",
			"captured 1", "captured 4", "captured 6", "captured 11",
		}
		if h.sql != nil { // with database/sql nothing waits for COMMIT
			want = []string{
				"published 1", "captured 1", "published 4", "captured 4", "published 6", "captured 6", "published 11",
				"captured 11",
			}
		}
		assert.Equal(t, want, topics(t, h))
		assert.Equal(t, []string{"1", "4", "6", "11"}, hooks)
	})
}

// TestSavepointsOfAJoinedNativeTransaction: a nested function joins its own native transaction with WithTx, like a
// library that receives one, and fails first inside it and then as a whole.
func TestSavepointsOfAJoinedNativeTransaction(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		join := func(ctx context.Context) context.Context {
			var native any
			if h.sql != nil {
				native, _ = outbox.SQLTx(ctx)
			} else {
				native, _ = outbox.PgxTx(ctx)
			}
			joined, err := joinNative(t.Context(), h, native)
			require.NoError(t, err)
			return joined
		}
		fails := func(ctx context.Context, n int, fn func(ctx context.Context)) {
			require.ErrorIs(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error {
				require.NoError(t, note(ctx, h, n))
				fn(ctx)
				return errUndo
			}), errUndo)
		}
		require.NoError(t, inTx(t, h, func(ctx context.Context) error {
			fails(ctx, 1, func(ctx context.Context) {
				fails(join(ctx), 2, func(context.Context) {})
				require.NoError(t, outbox.InTx(join(ctx), h.db, func(ctx context.Context) error { return note(ctx, h, 3) }))
			})
			return note(ctx, h, 4)
		}))
		assert.Equal(t, []int{4}, notes(t, h))
	})
}

func TestHooksRunAfterCommitAlone(t *testing.T) {
	h := onPgx(t)
	ran := 0
	hook := func(ctx context.Context) error { return outbox.AfterCommit(ctx, func(context.Context) { ran++ }) }
	require.NoError(t, inTx(t, h, func(ctx context.Context) error {
		require.NoError(t, note(ctx, h, 1))
		return outbox.AfterCommit(ctx, func(context.Context) {
			ran++
			assert.Equal(t, []int{1}, notes(t, h), "the hook sees the committed rows")
		})
	}))
	require.Equal(t, 1, ran)
	require.ErrorIs(t, inTx(t, h, func(ctx context.Context) error { return errors.Join(hook(ctx), errUndo) }), errUndo)
	require.ErrorIs(t, inTx(t, h, func(ctx context.Context) error {
		require.NoError(t, hook(ctx))
		return outbox.SetRollbackOnly(ctx)
	}), outbox.ErrRolledBack)
	require.Error(t, inTx(t, h, func(ctx context.Context) error {
		require.NoError(t, note(ctx, h, 1)) // refused at COMMIT
		return hook(ctx)
	}))
	assert.Equal(t, 1, ran)
	require.NoError(t, inTx(t, h, func(ctx context.Context) error {
		require.ErrorIs(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error {
			return errors.Join(hook(ctx), errUndo)
		}), errUndo)
		return outbox.InTx(ctx, h.db, hook)
	}))
	assert.Equal(t, 2, ran, "the hook of the nested InTx that was kept")
	require.ErrorIs(t, outbox.AfterCommit(t.Context(), func(context.Context) {}), outbox.ErrNoTx)
	require.ErrorIs(t, outbox.SetRollbackOnly(t.Context()), outbox.ErrNoTx)
}

func TestContextYieldsTheNativeTransaction(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		var ended context.Context
		require.NoError(t, inTx(t, h, func(ctx context.Context) error {
			ended = ctx
			native, pgxErr := outbox.PgxTx(ctx)
			std, sqlErr := outbox.SQLTx(ctx)
			_, err := (*core.DB)(h.db).Tx(ctx)
			require.NoError(t, err)
			if h.pool != nil {
				require.NoError(t, pgxErr)
				require.ErrorIs(t, sqlErr, outbox.ErrTxKind)
				require.ErrorContains(t, sqlErr, "use PgxTx")
				_, err := native.Exec(ctx, "insert into notes values ($1)", 1)
				return err
			}
			require.NoError(t, sqlErr)
			require.ErrorIs(t, pgxErr, outbox.ErrTxKind)
			require.ErrorContains(t, pgxErr, "use SQLTx")
			_, err = std.ExecContext(ctx, "insert into notes values ($1)", 1)
			return err
		}))
		assert.Equal(t, []int{1}, notes(t, h))
		for _, ctx := range []context.Context{ended, t.Context()} {
			_, err := outbox.PgxTx(ctx)
			require.ErrorIs(t, err, outbox.ErrNoTx)
			_, err = outbox.SQLTx(ctx)
			require.ErrorIs(t, err, outbox.ErrNoTx)
			_, err = (*core.DB)(h.db).Tx(ctx)
			require.ErrorIs(t, err, outbox.ErrNoTx)
		}
		require.ErrorIs(t, outbox.AfterCommit(ended, func(context.Context) {}), outbox.ErrNoTx)
		require.ErrorIs(t, outbox.SetRollbackOnly(ended), outbox.ErrNoTx)
		require.ErrorIs(t, outbox.InTx(ended, h.db, func(context.Context) error { return nil }), outbox.ErrTxEnded)
	})
}

// TestWithTx joins transactions that the caller began.
func TestWithTx(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		pub := newOutboxPublisher(t, h)
		for _, commits := range []bool{false, true} {
			tx, commit, rollback := beginNative(t, h)
			ctx, err := joinNative(t.Context(), h, tx)
			require.NoError(t, err)
			require.NoError(t, note(ctx, h, 1))
			require.NoError(t, pub.PublishContext(ctx, "published", newMessage("")))
			require.NoError(t, (*core.Publisher)(pub).Capture(ctx, "captured", newMessage("")))
			require.ErrorIs(t, outbox.AfterCommit(ctx, func(context.Context) {}), outbox.ErrNoTx)
			require.ErrorIs(t, outbox.SetRollbackOnly(ctx), outbox.ErrNoTx)

			require.ErrorIs(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error {
				require.NoError(t, note(ctx, h, 2))
				require.NoError(t, (*core.Publisher)(pub).Capture(ctx, "undone", newMessage("")))
				return outbox.SetRollbackOnly(ctx)
			}), outbox.ErrRolledBack)
			require.NoError(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error {
				return (*core.Publisher)(pub).Capture(ctx, "nested", newMessage(""))
			}))
			if commits {
				require.NoError(t, commit())
				assert.Equal(t, []int{1}, notes(t, h))
				assert.Equal(t, []string{"published", "captured", "nested"}, topics(t, h))
			} else {
				require.NoError(t, rollback())
				assert.Empty(t, notes(t, h))
				assert.Empty(t, topics(t, h))
			}
		}
	})
}

func TestTxOptions(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		setting := func(opts outbox.TxOptions, name string) (value string) {
			require.NoError(t, outbox.InTxWith(t.Context(), h.db, opts, func(ctx context.Context) error {
				tx, _ := (*core.DB)(h.db).Tx(ctx)
				return drive.Collect(ctx, tx, func(rows drive.Rows) error {
					return rows.Scan(&value)
				}, "select current_setting($1)", name)
			}))
			return value
		}
		for level, want := range map[sql.IsolationLevel]string{
			sql.LevelDefault: "read committed", sql.LevelReadUncommitted: "read uncommitted",
			sql.LevelReadCommitted:  "read committed",
			sql.LevelRepeatableRead: "repeatable read", sql.LevelSerializable: "serializable",
		} {
			assert.Equal(t, want, setting(outbox.TxOptions{Isolation: level}, "transaction_isolation"))
		}
		assert.Equal(t, "7s", setting(outbox.TxOptions{OnBegin: func(ctx context.Context) error {
			return h.execTx(ctx, "set local lock_timeout = '7s'")
		}}, "lock_timeout"))
		assert.Equal(t, "0", setting(outbox.TxOptions{}, "lock_timeout"))

		called := func(context.Context) error { t.Error("called"); return nil }
		require.Error(t, outbox.InTxWith(t.Context(), h.db, outbox.TxOptions{Isolation: sql.LevelLinearizable}, called))
		err := outbox.InTxWith(t.Context(), h.db, outbox.TxOptions{OnBegin: func(context.Context) error {
			return errUndo
		}}, called)
		require.ErrorIs(t, err, errUndo)
		require.ErrorContains(t, err, "OnBegin")
	})
}

func TestCommitsWakeForwardersOfTheirTable(t *testing.T) {
	h := onPgx(t)
	woken := map[string]int{}
	for name, db := range map[string]*outbox.DB{"ours": h.db, "other": h.with(t, sqltext.Tables{Outbox: "other"}).db} {
		t.Cleanup((*core.DB)(db).OnCommit(func(core.Notification) { woken[name]++ }))
	}
	pub := newOutboxPublisher(t, h)
	require.NoError(t, publishInTx(t, h, pub, "orders", newMessage("")))
	require.NoError(t, inTx(t, h, func(ctx context.Context) error {
		return (*core.Publisher)(pub).Capture(ctx, "orders", newMessage(""))
	}))
	require.NoError(t, inTx(t, h, func(ctx context.Context) error { return nil }))
	require.ErrorIs(t, inTx(t, h, func(ctx context.Context) error {
		require.NoError(t, (*core.Publisher)(pub).Capture(ctx, "orders", newMessage("")))
		return errUndo
	}), errUndo)
	assert.Equal(t, map[string]int{"ours": 2}, woken)
	h.db.Wake()
	assert.Equal(t, map[string]int{"ours": 3}, woken)
}

// TestNestedInTxRunOneAtATime makes two of them overlap. With savepoints that are not nested, one would undo the work
// of the other.
func TestNestedInTxRunOneAtATime(t *testing.T) {
	h := onPgx(t)
	require.NoError(t, inTx(t, h, func(ctx context.Context) error {
		aIsOpen, bIsDone, a := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			a <- core.InTx(ctx, (*core.DB)(h.db), core.TxOptions{}, func(ctx context.Context) error {
				// as with TxConfig.JoinContext
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
		require.ErrorIs(t, b, core.ErrTxBusy, "refused, not silently rolled back")
		require.ErrorIs(t, <-a, errUndo)

		require.NoError(t, outbox.InTx(ctx, h.db, func(inner context.Context) error {
			require.ErrorIs(t, outbox.InTx(ctx, h.db, func(context.Context) error { return nil }), core.ErrTxBusy,
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
	require.ErrorIs(t, err, core.ErrTxBusy, "half of a nested one would be committed")
	require.Error(t, <-nested)
	assert.Equal(t, []int{3, 4}, notes(t, h))
}

// TestWhatIsCapturedIsUndoneWithASavepoint of InTx, or of the user's code, and otherwise kept in order.
func TestWhatIsCapturedIsUndoneWithASavepoint(t *testing.T) {
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

// TestCapturingTakesNoSecondTransactionID checks which transaction wrote the row: a savepoint would have its own id.
func TestCapturingTakesNoSecondTransactionID(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		pub := newOutboxPublisher(t, h)
		require.NoError(t, inTx(t, h, func(ctx context.Context) error {
			return errors.Join(note(ctx, h, 1), (*core.Publisher)(pub).Capture(ctx, "captured", newMessage("")))
		}))
		assert.Equal(t, 1, h.count(t, "select count(*) from outbox o join notes n on o.xmin = n.xmin"))
	})
}

// TestOpenRowsAreNamed leaves the rows of a query open.
func TestOpenRowsAreNamed(t *testing.T) {
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
		require.NoError(t, publishInTx(t, h, pub, "topic", newMessage("")), "the pool still works")
	})
}
