package integration_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/queue"
)

// withAndWithoutCapture runs a test with and without messages that are written together with COMMIT.
func withAndWithoutCapture(t *testing.T, test func(t *testing.T, h handle, capture func(ctx context.Context) error)) {
	t.Helper()
	forEachHandle(t, func(t *testing.T, h handle) {
		pub := newOutboxPublisher(t, h)
		t.Run("with nothing captured", func(t *testing.T) {
			test(t, h, func(context.Context) error { return nil })
		})
		h.exec(t, "truncate notes, outbox")
		t.Run("with messages captured", func(t *testing.T) {
			test(t, h, func(ctx context.Context) error {
				return (*core.Publisher)(pub).Capture(ctx, "captured", newMessage(""))
			})
		})
	})
}

// TestEndingTheTransactionIsFound covers statements that no handle can refuse, and the methods of an sql.Tx; for those
// of a pgx.Tx see TestManagedTxRefusesToEnd. Any transaction that the handler begins instead is not the one that the
// messages, or the inbox row of middleware.Inbox, belong to.
func TestEndingTheTransactionIsFound(t *testing.T) {
	withAndWithoutCapture(t, func(t *testing.T, h handle, capture func(context.Context) error) {
		var kept []int
		methods := map[string]func(*sql.Tx) error{"Rollback()": (*sql.Tx).Rollback, "Commit()": (*sql.Tx).Commit}
		for i, end := range []string{
			"rollback", "ROLLBACK", "commit", "COMMIT; ", "end",
			"rollback; begin", "commit; begin", "rollback and chain", "commit and chain",
			"rollback; begin isolation level serializable", "savepoint x; rollback; begin; savepoint x",
			"Rollback()", "Commit()",
		} {
			method := methods[end]
			if method != nil && h.sql == nil {
				continue
			}
			for _, begins := range []bool{true, false} {
				// BEGIN is sent with one of our statements, as in middleware.Stack, or with the handler's first one
				n := 2*i + map[bool]int{true: 1}[begins]
				hook := false
				err := inTx(t, h, func(ctx context.Context) error {
					if begins {
						require.NoError(t, h.execFirst(ctx, "insert into notes values ($1)", n))
					} else {
						require.NoError(t, note(ctx, h, n))
					}
					require.NoError(t, outbox.AfterCommit(ctx, func(context.Context) { hook = true }))
					endTx := func() error { return h.execTx(ctx, end) }
					if method != nil {
						tx, _ := outbox.SQLTx(ctx)
						endTx = func() error { return method(tx) }
					}
					err := endTx()
					_ = note(ctx, h, 100+n) // in the new transaction, if any
					return errors.Join(err, capture(ctx))
				})
				require.ErrorIs(t, err, outbox.ErrTxEnded, end)
				require.NotErrorIs(t, err, outbox.ErrCommitUnknown, end)
				assert.False(t, hook)
				switch end {
				case "commit", "COMMIT; ", "end":
					h.exec(t, "delete from notes where n = $1", 100+n) // it committed on its own
					fallthrough
				case "commit; begin", "commit and chain", "Commit()":
					kept = append(kept, n)
				case "rollback", "ROLLBACK":
					h.exec(t, "delete from notes where n = $1", 100+n)
				}
			}
		}
		slices.Sort(kept)
		assert.Equal(t, kept, notes(t, h), "the handler's own commits")
		assert.Empty(t, topics(t, h), "nothing is published for an ended transaction")
		require.NoError(t, inTx(t, h, func(ctx context.Context) error { return note(ctx, h, 200) }), "the pool still works")
	})
}

// TestOnBeginChoosesTheIsolationLevel requires that none of our statements has taken a snapshot before.
func TestOnBeginChoosesTheIsolationLevel(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		require.NoError(t, outbox.InTxWith(t.Context(), h.db, outbox.TxOptions{OnBegin: func(ctx context.Context) error {
			return h.execTx(ctx, "set transaction isolation level serializable")
		}}, func(ctx context.Context) error { return note(ctx, h, 1) }))
		assert.Equal(t, []int{1}, notes(t, h))
	})
}

// TestSwallowedErrorsRollBack also if the statement that BEGIN would have been sent with fails: later ones must not
// commit on their own.
func TestSwallowedErrorsRollBack(t *testing.T) {
	withAndWithoutCapture(t, func(t *testing.T, h handle, capture func(context.Context) error) {
		for _, bad := range []string{
			"select 1/0", "no sql", "select * from no_such_table", "insert into notes values ('x')",
		} {
			for _, first := range []bool{false, true, true} { // the second time the driver may know the statement
				err := inTx(t, h, func(ctx context.Context) error {
					exec := h.execFirst
					if !first {
						require.NoError(t, note(ctx, h, 1))
						exec = h.execTx
					}
					require.Error(t, exec(ctx, bad))
					require.Error(t, note(ctx, h, 2), bad)
					return capture(ctx)
				})
				require.Error(t, err, bad)
				if !first {
					require.ErrorIs(t, err, pgx.ErrTxCommitRollback, bad)
				}
				require.NotErrorIs(t, err, outbox.ErrCommitUnknown, bad)
			}
		}
		if h.pool != nil { // an argument that the driver cannot encode never reaches the server
			err := inTx(t, h, func(ctx context.Context) error {
				require.Error(t, h.execFirst(ctx, "insert into notes values ($1)", struct{}{}))
				require.Error(t, note(ctx, h, 1))
				return capture(ctx)
			})
			require.Error(t, err)
		}
		assert.Empty(t, notes(t, h))
		assert.Empty(t, topics(t, h))
	})
}

func TestConstraintFailingAtCommitIsAnOrdinaryError(t *testing.T) {
	withAndWithoutCapture(t, func(t *testing.T, h handle, capture func(context.Context) error) {
		h.exec(t, "insert into notes values (1)")
		for range 2 {
			err := inTx(t, h, func(ctx context.Context) error {
				require.NoError(t, capture(ctx))
				return note(ctx, h, 1)
			})
			assert.Equal(t, "23505", text.SQLState(err))
			require.NotErrorIs(t, err, outbox.ErrCommitUnknown)
		}
		assert.Empty(t, topics(t, h))
		require.NoError(t, inTx(t, h, func(ctx context.Context) error { return note(ctx, h, 2) }))
	})
}

func TestContextOverBeforeCommit(t *testing.T) {
	withAndWithoutCapture(t, func(t *testing.T, h handle, capture func(context.Context) error) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := outbox.InTx(ctx, h.db, func(ctx context.Context) error {
			require.NoError(t, note(ctx, h, 1))
			require.NoError(t, capture(ctx))
			cancel()
			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, outbox.ErrCommitUnknown, "COMMIT was never sent")
		assert.Empty(t, notes(t, h))
		assert.Empty(t, topics(t, h))
		require.ErrorIs(t, outbox.InTx(ctx, h.db, func(context.Context) error { return nil }), context.Canceled)
	})
}

// TestBackendGoneBeforeCommit: the server ends the session while the handler works.
func TestBackendGoneBeforeCommit(t *testing.T) {
	withAndWithoutCapture(t, func(t *testing.T, h handle, capture func(context.Context) error) {
		killer := newPgxHandle(t, h.url)
		hook := false
		err := inTx(t, h, func(ctx context.Context) error {
			require.NoError(t, note(ctx, h, 1))
			require.NoError(t, capture(ctx))
			require.NoError(t, outbox.AfterCommit(ctx, func(context.Context) { hook = true }))
			const ours = "from pg_stat_activity where state = 'idle in transaction' and datname = current_database()"
			killer.exec(t, "select pg_terminate_backend(pid) "+ours)
			eventually(t, func() bool { return killer.count(t, "select count(*) "+ours) == 0 }, "the session ends")
			return nil
		})
		require.Error(t, err)
		assert.False(t, hook)
		assert.Empty(t, notes(t, killer))
		assert.Empty(t, topics(t, killer))
		require.NoError(t, inTx(t, h, func(ctx context.Context) error { return note(ctx, h, 2) }), "the pool still works")
	})
}

// TestCommitUnknown cuts the connection exactly while COMMIT is in flight: after the server executed it, or before the
// server received it. The client cannot distinguish the two. With pgx also when captured messages are sent with it.
func TestCommitUnknown(t *testing.T) {
	t.Parallel()
	for i, name := range []string{"pgx", "sql-pgx", "sql-pq", "pgx, with messages captured"} {
		captures := i == 3
		for _, arrives := range []bool{true, false} {
			t.Run(name+map[bool]string{true: ", committed", false: ", lost"}[arrives], func(t *testing.T) {
				if i%3 > 0 {
					extended(t)
				}
				noLeaks(t)
				direct := newPgxHandle(t, newMigratedDatabase(t))
				proxy := newProxy(t, direct.url+"&application_name=cut")
				h := openHandles(t, proxy.url)[i%3]
				if h.sql != nil {
					h.sql.SetMaxOpenConns(1)
				} else {
					h = pgxHandle(t, "pgx", proxy.url, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
				}
				h = h.configured(t, outbox.DBConfig{DisableNotify: true})
				pub := newOutboxPublisher(t, h)
				hook := false
				work := func(n int, last func()) error {
					return outbox.InTx(shortly(t), h.db, func(ctx context.Context) error {
						require.NoError(t, note(ctx, h, n))
						if captures {
							require.NoError(t, (*core.Publisher)(pub).Capture(ctx, "captured", newMessage("")))
						}
						require.NoError(t, outbox.AfterCommit(ctx, func(context.Context) { hook = n == 2 }))
						last()
						return nil
					})
				}
				require.NoError(t, work(1, func() {})) // from now on pgx has prepared COMMIT
				err := work(2, func() {
					switch {
					case arrives:
						proxy.cutAtCommitted.Store(true)
					case h.pool != nil:
						proxy.cutAtNext.Store(true)
					default:
						proxy.cutAtCommit()
					}
				})
				require.ErrorIs(t, err, outbox.ErrCommitUnknown)
				assert.False(t, hook)
				assert.EqualValues(t, 1, proxy.cuts.Load())

				// The server takes a moment to notice a connection that was cut before COMMIT.
				direct.reaches(t, 0, "the session ends",
					"select count(*) from pg_stat_activity where application_name = 'cut'")
				want := map[bool]int{true: 2, false: 1}[arrives]
				assert.Len(t, notes(t, direct), want)
				if captures {
					assert.Len(t, topics(t, direct), want)
				}
				require.NoError(t, work(3, func() {}), "the pool still works")
			})
		}
	}
}

// poolerConn is a connection to a pooler whose server commits and then breaks. Once armed it holds back all replies up
// to the reply to COMMIT, and ends with its own error in place of the first statement's reply.
type poolerConn struct {
	net.Conn
	armed *atomic.Bool
	error []byte // its remaining bytes
}

func (c *poolerConn) Read(p []byte) (int, error) {
	if c.armed.CompareAndSwap(true, false) {
		var hidden []byte
		for !bytes.Contains(hidden, []byte("COMMIT\x00")) {
			n, err := c.Conn.Read(p)
			if err != nil {
				return n, err
			}
			hidden = append(hidden, p[:n]...)
		}
		fields := "SFATAL\x00VFATAL\x00C08P01\x00Mserver conn crashed?\x00\x00"
		c.error = append(binary.BigEndian.AppendUint32([]byte("E"), uint32(4+len(fields))), fields...)
	} else if c.error == nil {
		return c.Conn.Read(p)
	}
	if len(c.error) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.error)
	c.error = c.error[n:]
	return n, nil
}

func TestCommitUnknownBehindAPooler(t *testing.T) {
	t.Parallel()
	for name, captures := range map[string]bool{"with nothing captured": false, "with messages captured": true} {
		t.Run(name, func(t *testing.T) {
			direct := newPgxHandle(t, newMigratedDatabase(t))
			var armed atomic.Bool
			h := pgxHandle(t, "pgx", direct.url, func(cfg *pgxpool.Config) {
				cfg.MaxConns = 1
				dial := cfg.ConnConfig.DialFunc
				cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := dial(ctx, network, addr)
					return &poolerConn{Conn: conn, armed: &armed}, err
				}
			})
			h = h.configured(t, outbox.DBConfig{DisableNotify: true})
			pub := newOutboxPublisher(t, h)
			work := func(n int, last func()) error {
				return outbox.InTx(shortly(t), h.db, func(ctx context.Context) error {
					require.NoError(t, note(ctx, h, n))
					if captures {
						require.NoError(t, (*core.Publisher)(pub).Capture(ctx, "captured", newMessage("")))
					}
					last()
					return nil
				})
			}
			require.NoError(t, work(1, func() {})) // from now on pgx has prepared its statements
			require.ErrorIs(t, work(2, func() { armed.Store(true) }), outbox.ErrCommitUnknown)
			assert.Equal(t, []int{1, 2}, notes(t, direct), "the transaction was committed")
			require.NoError(t, work(3, func() {}), "the pool still works")
		})
	}
}

func TestHintsFollowCommit(t *testing.T) {
	h := onPgx(t)
	pool := drive.NewPgx(h.pool)
	insert := []drive.Statement{{SQL: "insert into notes values (1)"}}
	for name, test := range map[string]struct {
		pending, hints []drive.Statement
		committed      bool
	}{
		"the hint sees the committed rows": {
			insert, []drive.Statement{{SQL: "insert into notes select n + 1 from notes where n = 1"}}, true,
		},
		"a failing hint has no effect": {
			insert, []drive.Statement{{SQL: "select 1 / (select count(*) - 1 from notes)"}}, true,
		},
		"no hint runs if nothing is committed": {
			[]drive.Statement{{SQL: "select 1 / (select count(*) from notes)"}},
			[]drive.Statement{{SQL: "insert into notes values (2)"}}, false,
		},
	} {
		_, err := h.pool.Exec(t.Context(), "truncate notes")
		require.NoError(t, err)
		tx, err := pool.Begin(t.Context(), drive.TxOptions{})
		require.NoError(t, err)
		require.True(t, tx.Hints())
		err = tx.Commit(t.Context(), test.pending, test.hints)
		assert.Equal(t, test.committed, err == nil, "%s: %v", name, err)
		switch got := notes(t, h); name {
		case "the hint sees the committed rows":
			assert.Equal(t, []int{1, 2}, got, name)
		case "a failing hint has no effect":
			assert.Equal(t, []int{1}, got, name)
		default:
			assert.Empty(t, got, name)
		}
	}
}

// TestAnErrorThatPanicsEndsItsTransaction: a handler may return an error that is a nil pointer and panics in errors.Is.
// The transaction is rolled back, and the connection returns to the pool.
func TestAnErrorThatPanicsEndsItsTransaction(t *testing.T) {
	t.Parallel()
	h := pgxHandle(t, "one connection", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	for name, err := range unsound() {
		for where, run := range map[string]func(ctx context.Context, fn func(ctx context.Context) error) error{
			"in a transaction": func(ctx context.Context, fn func(context.Context) error) error {
				return outbox.InTx(ctx, h.db, fn)
			},
			"behind a savepoint": func(ctx context.Context, fn func(context.Context) error) error {
				return outbox.InTx(ctx, h.db, func(ctx context.Context) error { return outbox.InTx(ctx, h.db, fn) })
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			failed := run(ctx, func(ctx context.Context) error {
				require.NoError(t, h.execTx(ctx, `insert into effects (message_id) values ('a')`))
				return err
			})
			assert.ErrorContains(t, failed, "return nil instead of a nil pointer", "%s %s", name, where)
			assert.Zero(t, h.count(t, "select count(*) from effects"), "%s %s", name, where)
			cancel()
		}
	}
}

// TestAnErrorThatPanicsEndsNoProcess: its message fails like any other.
func TestAnErrorThatPanicsEndsNoProcess(t *testing.T) {
	h := onPgx(t)
	cfg := quickStore()
	cfg.MaxAttempts, cfg.Backoff = 2, outbox.Backoff{Initial: time.Millisecond, Max: time.Millisecond}
	s := storeOn(t, h, cfg)
	handlers := map[string]queue.Handler{}
	for name, err := range unsound() {
		handle := func(context.Context, *queue.Message) error { return err }
		handlers[name] = queue.Handler{Handle: handle}
		handlers[name+", detached"] = queue.Handler{Handle: handle, Detached: true}
	}
	for name, err := range unsound() {
		ingest, failed := queue.Ingest(s, queue.IngestConfig{
			Item: func(*message.Message) (queue.Item, error) { return queue.Item{}, err },
		})
		require.NoError(t, failed)
		require.ErrorContains(t, ingest(newMessage("")), "return nil instead of a nil pointer", "%s, ingested", name)
	}
	dispatching(t, s, quickDispatcher(handlers))
	for topic := range handlers {
		storeAll(t, s, items(topic, 1)...)
	}
	for topic := range handlers {
		untilState(t, s, itemID(topic, 0), queue.Dead)
		assert.Contains(t, got(t, s, itemID(topic, 0)).LastError, "return nil instead of a nil pointer", topic)
	}
}
