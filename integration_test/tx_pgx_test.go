package integration_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// inPgxTx runs a test in a transaction and with the pgx.Tx that handlers get.
func inPgxTx(t testing.TB, h handle, fn func(ctx context.Context, tx pgx.Tx) error) error {
	t.Helper()
	return inTx(t, h, func(ctx context.Context) error {
		tx, err := outbox.PgxTx(ctx)
		require.NoError(t, err)
		return fn(ctx, tx)
	})
}

func TestManagedTxRefusesToEnd(t *testing.T) {
	h := onPgx(t)
	require.NoError(t, inPgxTx(t, h, func(ctx context.Context, tx pgx.Tx) error {
		require.NoError(t, note(ctx, h, 1))
		require.ErrorIs(t, tx.Commit(ctx), drive.ErrTxManaged)
		require.ErrorIs(t, tx.Rollback(ctx), drive.ErrTxManaged)

		batch := &pgx.Batch{}
		batch.BeginTx(pgx.TxOptions{})
		results := tx.SendBatch(ctx, batch)
		require.ErrorIs(t, results.Close(), drive.ErrTxManaged)
		return note(ctx, h, 2)
	}))
	assert.Equal(t, []int{1, 2}, notes(t, h))
}

func TestManagedTxNests(t *testing.T) {
	h := onPgx(t)
	insert := func(ctx context.Context, tx pgx.Tx, n int) {
		_, err := tx.Exec(ctx, "insert into notes values ($1)", n)
		require.NoError(t, err)
	}
	require.NoError(t, inPgxTx(t, h, func(ctx context.Context, tx pgx.Tx) error {
		insert(ctx, tx, 1)

		kept, err := tx.Begin(ctx)
		require.NoError(t, err)
		insert(ctx, kept, 2)
		undone, err := kept.Begin(ctx)
		require.NoError(t, err)
		insert(ctx, undone, 3)
		require.NoError(t, undone.Rollback(ctx))
		require.NoError(t, kept.Commit(ctx))
		for _, ended := range []pgx.Tx{kept, undone} {
			require.ErrorIs(t, ended.Commit(ctx), pgx.ErrTxClosed)
			require.ErrorIs(t, ended.Rollback(ctx), pgx.ErrTxClosed)
			refusesAll(t, ctx, ended)
		}

		// Two functions that are unaware of each other both begin on the transaction in the context.
		outer, err := tx.Begin(ctx)
		require.NoError(t, err)
		insert(ctx, outer, 4)
		inner, err := tx.Begin(ctx)
		require.NoError(t, err)
		insert(ctx, inner, 5)
		require.NoError(t, inner.Rollback(ctx))
		require.NoError(t, outer.Rollback(ctx))

		require.NoError(t, pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { insert(ctx, tx, 6); return nil }))
		require.ErrorIs(t, pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { insert(ctx, tx, 7); return errUndo }), errUndo)
		require.Error(t, pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "select 1/0")
			return err
		}))
		insert(ctx, tx, 8)
		return nil
	}))
	assert.Equal(t, []int{1, 2, 6, 8}, notes(t, h))
}

func TestManagedTxDoesWhatPgxDoes(t *testing.T) {
	h := onPgx(t)
	var object uint32
	require.NoError(t, inPgxTx(t, h, func(ctx context.Context, tx pgx.Tx) error {
		n, err := tx.CopyFrom(ctx, pgx.Identifier{"notes"}, []string{"n"}, pgx.CopyFromRows([][]any{{1}, {2}}))
		require.NoError(t, err)
		assert.EqualValues(t, 2, n)

		batch := &pgx.Batch{}
		batch.Queue("insert into notes values ($1)", 3)
		batch.Queue("insert into notes values ($1)", 4)
		require.NoError(t, tx.SendBatch(ctx, batch).Close())

		_, err = tx.Prepare(ctx, "add_note", "insert into notes values ($1)")
		require.NoError(t, err)
		_, err = tx.Exec(ctx, "add_note", 5)
		require.NoError(t, err)

		rows, err := tx.Query(ctx, "select n from notes order by n")
		require.NoError(t, err)
		all, err := pgx.CollectRows(rows, pgx.RowTo[int])
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2, 3, 4, 5}, all)
		var sum int
		require.NoError(t, tx.QueryRow(ctx, "select sum(n) from notes").Scan(&sum))
		assert.Equal(t, 15, sum)

		large := tx.LargeObjects()
		object, err = large.Create(ctx, 0)
		require.NoError(t, err)
		o, err := large.Open(ctx, object, pgx.LargeObjectModeRead|pgx.LargeObjectModeWrite)
		require.NoError(t, err)
		_, err = o.Write([]byte("large"))
		require.NoError(t, err)
		_, err = o.Seek(0, io.SeekStart)
		require.NoError(t, err)
		read, err := io.ReadAll(o)
		require.NoError(t, err)
		assert.Equal(t, "large", string(read))
		assert.NotNil(t, tx.Conn())
		return nil
	}))
	assert.Len(t, notes(t, h), 5)
	assert.Equal(t, 1, h.count(t, "select count(*) from pg_largeobject_metadata where oid = $1::bigint::oid",
		int64(object)))
}

// TestPgxWithoutADescriptionCache runs statements outside transactions.
func TestPgxWithoutADescriptionCache(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newDatabase(t)+"&description_cache_capacity=0")
	for range 2 {
		require.NoError(t, makeTables(t.Context(), h.db))
		require.NoError(t, checkSchema(t.Context(), h.db))
	}
	h.exec(t, "create table if not exists kinds (i bigint[], f float8[], s text[], b bytea[], y bytea, n text)")
	h.exec(t, "insert into kinds values ($1, $2, $3, $4, $5, $6)",
		[]int64{1}, []float64{0.5}, []string{`a"\`}, [][]byte{{0, 255}}, []byte{0, 255}, nil)
	assert.Equal(t, 1, h.count(t, `select count(*) from kinds where i = $1 and f = $2 and s = $3 and b = $4 `+
		`and y = $5 and n is null`,
		[]int64{1}, []float64{0.5}, []string{`a"\`}, [][]byte{{0, 255}}, []byte{0, 255}))
	assert.Equal(t, []byte{0, 255}, value[[]byte](t, h, "select y from kinds"))
}

// refusesAll calls every method of a pgx.Tx.
func refusesAll(t *testing.T, ctx context.Context, tx pgx.Tx) {
	t.Helper()
	_, err := tx.Exec(ctx, "insert into notes values (99)")
	require.ErrorIs(t, err, pgx.ErrTxClosed)
	_, err = tx.Query(ctx, "select 1")
	require.ErrorIs(t, err, pgx.ErrTxClosed)
	var one int
	require.ErrorIs(t, tx.QueryRow(ctx, "select 1").Scan(&one), pgx.ErrTxClosed)
	_, err = tx.CopyFrom(ctx, pgx.Identifier{"notes"}, []string{"n"}, pgx.CopyFromRows([][]any{{99}}))
	require.ErrorIs(t, err, pgx.ErrTxClosed)
	batch := &pgx.Batch{}
	batch.Queue("insert into notes values (99)")
	require.ErrorIs(t, tx.SendBatch(ctx, batch).Close(), pgx.ErrTxClosed)
	_, err = tx.Prepare(ctx, "p", "select 1")
	require.ErrorIs(t, err, pgx.ErrTxClosed)
	_, err = tx.Begin(ctx)
	require.ErrorIs(t, err, pgx.ErrTxClosed)
	large := tx.LargeObjects()
	_, err = large.Create(ctx, 0)
	require.ErrorIs(t, err, pgx.ErrTxClosed)
}

// TestManagedTxIsOverAfterItsEnd keeps the transaction and objects obtained from it: other code may use the connection
// by then.
func TestManagedTxIsOverAfterItsEnd(t *testing.T) {
	h := onPgx(t)
	for _, end := range []error{nil, errUndo} {
		var kept, nested pgx.Tx
		var large pgx.LargeObjects
		err := inPgxTx(t, h, func(ctx context.Context, tx pgx.Tx) (err error) {
			kept, large = tx, tx.LargeObjects()
			_, err = large.Create(ctx, 0)
			require.NoError(t, err)
			nested, err = tx.Begin(ctx)
			require.NoError(t, err)
			return end
		})
		require.ErrorIs(t, err, end)
		for _, tx := range []pgx.Tx{kept, nested} {
			refusesAll(t, t.Context(), tx)
			assert.Nil(t, tx.Conn())
		}
		require.ErrorIs(t, nested.Commit(t.Context()), pgx.ErrTxClosed)
		require.ErrorIs(t, kept.Commit(t.Context()), drive.ErrTxManaged)
		_, err = large.Create(t.Context(), 0)
		require.ErrorIs(t, err, pgx.ErrTxClosed)
	}
	assert.Empty(t, notes(t, h))
	assert.EqualValues(t, 0, h.pool.Stat().AcquiredConns())
}

func TestManyTransactionsAtOnce(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
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
	forEachPgBouncerHandle(t, func(t *testing.T, h handle) {
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

// TestDedicatedReconnects breaks the connection on which the forwarder renews its lease.
func TestDedicatedReconnects(t *testing.T) {
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
	forEachHandle(t, func(t *testing.T, h handle) {
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
