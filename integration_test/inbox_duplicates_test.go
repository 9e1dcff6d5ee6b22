package integration_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
)

// syncsDuring counts how often the server flushes its log to disk while fn runs. Processes report their statistics at
// the latest when they end. Postgres 13 does not count flushes, so transactions with an id are counted instead: no
// others wait for the disk.
func syncsDuring(t *testing.T, url string, fn func(h handle)) int {
	t.Helper()
	reader := newPgxHandle(t, url)
	query := "select wal_sync::int from pg_stat_wal"
	switch version := value[int](t, reader, "select current_setting('server_version_num')::int"); {
	case version >= 180000:
		query = "select sum(fsyncs)::int from pg_stat_io where object = 'wal'"
	case version < 140000:
		query = "select txid_snapshot_xmax(txid_current_snapshot())::int"
	}
	h := newPgxHandle(t, url)
	pids := func() int {
		return reader.count(t, "select count(*) from pg_stat_activity where backend_type = 'client backend' "+
			"and pid <> pg_backend_pid()")
	}
	before := value[int](t, reader, query)
	fn(h)
	h.pool.Close()
	eventually(t, func() bool { return pids() == 0 }, "the connections are closed and have reported their counts")
	after := value[int](t, reader, query)
	reader.pool.Close()
	return after - before
}

// TestASkippedMessageIsLogged at debug level, with the consumer and the key that was found.
func TestASkippedMessageIsLogged(t *testing.T) {
	h := onPgx(t)
	log := watermill.NewCaptureLogger()
	handler := chain(bookSilently(h), stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{
		Inbox: middleware.InboxConfig{Consumer: "test"},
	}, log)...)
	msg := newMessage("")
	for range 3 {
		_, err := handler(msg.Copy())
		require.NoError(t, err)
	}
	var keys []any
	for _, line := range log.Captured()[watermill.DebugLogLevel] {
		if line.Msg == "skipping a message that was handled before" {
			keys = append(keys, line.Fields["inbox_key"])
		}
	}
	assert.Equal(t, []any{msg.UUID, msg.UUID}, keys)
}

// TestADuplicateWaitsForNoDisk: the statement that finds a handled message locks its row and so takes a transaction id,
// with which COMMIT would wait for the disk.
func TestADuplicateWaitsForNoDisk(t *testing.T) {
	extended(t)
	t.Parallel()
	server, h := ownMigratedServer(t, "autovacuum=off")
	h.exec(t, createEffects)
	h.pool.Close()
	const n = 100
	var messages message.Messages
	for range n {
		messages = append(messages, newMessage(""))
	}
	deliver := func(cfg middleware.StackConfig) func(h handle) {
		return func(h handle) {
			obs := &seen{}
			handler := chain(book(h), stack(t, h.seenBy(t, obs), cfg)...)
			for _, msg := range messages {
				_, err := handler(msg.Copy())
				require.NoError(t, err)
			}
		}
	}
	const few = n / 5
	assert.GreaterOrEqual(t, syncsDuring(t, server.URL(), deliver(middleware.StackConfig{})), n, "the first of each")
	assert.Less(t, syncsDuring(t, server.URL(), deliver(middleware.StackConfig{})), few, "copies")
	checked := middleware.StackConfig{Inbox: middleware.InboxConfig{CheckContent: true}}
	assert.Less(t, syncsDuring(t, server.URL(), deliver(checked)), few, "copies whose content is compared")
}

// TestADuplicateKeepsWhatOthersWrote in its transaction.
func TestADuplicateKeepsWhatOthersWrote(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		note := func(ctx context.Context, what string) error {
			return h.execTx(ctx, "insert into effects (message_id, note) values ('', $1)", what)
		}
		pub := newOutboxPublisher(t, h)
		between := func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				ctx := msg.Context()
				produced, err := next(msg)
				return produced, errors.Join(err, note(ctx, "between"))
			}
		}
		hooked := make(chan bool, 10)
		for what, mws := range map[string][]message.HandlerMiddleware{
			"begin": stack(t, h, middleware.StackConfig{Tx: middleware.TxConfig{
				OnBegin: func(ctx context.Context, _ *message.Message) error { return note(ctx, "begin") },
			}}),
			"event": stack(t, h, middleware.StackConfig{Tx: middleware.TxConfig{
				OnBegin: func(ctx context.Context, _ *message.Message) error {
					return pub.PublishContext(ctx, "audit", newMessage(""))
				},
			}}),
			"hook": stack(t, h, middleware.StackConfig{Tx: middleware.TxConfig{
				OnBegin: func(ctx context.Context, _ *message.Message) error {
					return outbox.AfterCommit(ctx, func(context.Context) { hooked <- true })
				},
			}}),
			"mismatch": stack(t, h, middleware.StackConfig{Inbox: middleware.InboxConfig{
				CheckContent: true,
				OnMismatch:   func(ctx context.Context, _ *message.Message) error { return note(ctx, "mismatch") },
			}}),
			"between": {newTx(t, h, middleware.TxConfig{}), between, newInbox(t, h, middleware.InboxConfig{})},
		} {
			msg := newMessage("")
			handler := chain(func(*message.Message) ([]*message.Message, error) { return nil, nil }, mws...)
			_, err := handler(msg.Copy())
			require.NoError(t, err)
			for len(hooked) > 0 {
				<-hooked
			}
			h.exec(t, "delete from effects")
			h.exec(t, "delete from outbox")
			copied := msg.Copy()
			copied.Payload = []byte("other")
			_, err = handler(copied)
			require.NoError(t, err)
			switch what {
			case "event":
				assert.Equal(t, []string{"audit"}, topics(t, h), what)
			case "hook":
				assert.Len(t, hooked, 1, what)
			default:
				assert.Equal(t, []string{what}, column[string](t, h, "select note from effects"), what)
			}
		}

		msg := newMessage("")
		handler := chain(func(*message.Message) ([]*message.Message, error) {
			return nil, nil
		}, newInbox(t, h, middleware.InboxConfig{}))
		h.exec(t, "delete from effects")
		for range 2 {
			require.NoError(t, inTx(t, h, func(ctx context.Context) error {
				copied := msg.Copy()
				copied.SetContext(ctx)
				_, err := handler(copied)
				return errors.Join(err, note(ctx, "around"))
			}), "a transaction of the user's, with Inbox in it")
		}
		assert.Equal(t, []string{"around", "around"}, column[string](t, h, "select note from effects"))
	})
}

// setStandby sets the server's synchronous_standby_names and waits until it is in effect.
func setStandby(t testing.TB, h handle, statement, want string) {
	t.Helper()
	h.exec(t, statement)
	h.exec(t, "select pg_reload_conf()")
	eventually(t, func() bool { return value[string](t, h, "show synchronous_standby_names") == want }, "it is in effect")
}

// TestADuplicateWaitsForTheStandby that the first delivery's COMMIT waits for, as long as that may be lost with this
// server. The first wait is interrupted, which leaves the transaction visible: to sessions that do not wait themselves
// it looks committed.
func TestADuplicateWaitsForTheStandby(t *testing.T) {
	extended(t)
	t.Parallel()
	_, h := ownMigratedServer(t)
	h.exec(t, createEffects)
	reload := func(statement, want string) { setStandby(t, h, statement, want) }
	obs := &seen{}
	mws := stack(t, h.seenBy(t, obs), middleware.StackConfig{Tx: middleware.TxConfig{Timeout: time.Second}})
	handler := chain(book(h), mws[1:]...) // writes of ErrorHandler would wait as well
	first, second := newMessage("first"), newMessage("second")
	_, err := handler(first.Copy())
	require.NoError(t, err)
	reload("alter system set synchronous_standby_names = 'nobody'", "nobody")
	h.pool.Reset()
	_, err = handler(second.Copy())
	require.ErrorIs(t, err, outbox.ErrCommitUnknown)
	eventually(t, func() bool { return effects(t, h, second) == 1 }, "visible, and on no standby")
	for range 2 { // the second call follows a duplicate
		_, err = handler(second.Copy())
		require.Error(t, err, "its broker would delete it, and a failover would lose the commit")
	}
	begins := middleware.TxConfig{OnBegin: func(context.Context, *message.Message) error { return errHandler }}
	waited := make(chan error, 1)
	go func() {
		_, err := chain(book(h), stack(t, h, middleware.StackConfig{Tx: begins})...)(second.Copy())
		waited <- err
	}()
	eventually(t, func() bool {
		return h.count(t, "select count(*) from pg_stat_activity "+
			"where wait_event = 'SyncRep' and query like '%FOR UPDATE%'") > 0
	}, "a copy detected after OnBegin failed waits too")
	reload("alter system reset synchronous_standby_names", "")
	<-waited
	h.pool.Reset()
	_, err = handler(second.Copy())
	require.NoError(t, err)
	assert.Equal(t, observe.Duplicate, obs.last().Outcome)
	assert.Equal(t, 1, effects(t, h, second))
}

// TestCommitThatStopsWaitingForTheStandby: when the context ends, lib/pq asks the server to cancel COMMIT, and so does
// pgx if it is configured to. The server stops waiting for the standby, and reports success.
func TestCommitThatStopsWaitingForTheStandby(t *testing.T) {
	extended(t)
	t.Parallel()
	_, admin := ownMigratedServer(t)
	admin.exec(t, createEffects)
	setStandby(t, admin, "alter system set synchronous_standby_names = 'nobody'", "nobody")
	cancelling := pgxHandle(t, "pgx, cancelling", admin.url, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
			return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: patience}
		}
	})
	for _, h := range append(openHandles(t, admin.url), cancelling) {
		hook := false
		err := outbox.InTxWith(t.Context(), h.db, outbox.TxOptions{Timeout: time.Second}, func(ctx context.Context) error {
			return errors.Join(h.execTx(ctx, "insert into effects (message_id) values ($1)", h.name),
				outbox.AfterCommit(ctx, func(context.Context) { hook = true }))
		})
		assert.ErrorIs(t, err, outbox.ErrCommitUnknown, h.name)
		assert.False(t, hook, h.name)
	}
}
