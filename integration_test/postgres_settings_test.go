package integration_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/queue"
)

// ways lists the ways to connect to a database with hostile settings.
var ways = map[string]func(testing.TB, string) handle{
	"pgx":       newPgxHandle,
	"pgbouncer": newPgBouncerHandle,
	"pgx-simple": func(t testing.TB, url string) handle {
		return pgxHandle(t, "pgx-simple", url, func(cfg *pgxpool.Config) {
			cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		})
	},
	"sql-pgx": func(t testing.TB, url string) handle { return newSQLHandle(t, "pgx", url) },
	"sql-pgx-exec": func(t testing.TB, url string) handle {
		return newSQLHandle(t, "pgx", url+"&default_query_exec_mode=exec")
	},
	"sql-pq": func(t testing.TB, url string) handle { return newSQLHandle(t, "postgres", url) },
}

// hostileToText lists the ways that refuse settings for the text form of values, which lib/pq overrides itself.
var hostileToText = []string{"pgx", "pgbouncer", "pgx-simple", "sql-pgx", "sql-pgx-exec"}

// hostile lists settings of a role or a database, and the ways that refuse them with an error that names them; the
// other ways tolerate them.
var hostile = []struct {
	setting string
	refused []string // "" = all
	long    bool     // only if there is time
	since   string   // the first release of Postgres with this setting; "" = all have it
}{
	{setting: "default_transaction_isolation = 'repeatable read'", refused: []string{""}},
	{setting: "default_transaction_isolation = 'serializable'", refused: []string{""}, long: true},
	{setting: "default_transaction_read_only = on", refused: []string{""}},
	{setting: "client_encoding = LATIN1", refused: hostileToText},
	{setting: "bytea_output = escape", refused: []string{""}},
	{setting: "standard_conforming_strings = off", refused: []string{"pgx-simple"}},
	{setting: "quote_all_identifiers = on"},
	{setting: "datestyle = 'German'", refused: hostileToText},
	{setting: "datestyle = 'SQL, DMY'", refused: hostileToText, long: true},
	{setting: "intervalstyle = 'sql_standard'", long: true},
	{setting: "extra_float_digits = -15", refused: []string{""}},
	{setting: "timezone = 'Asia/Kolkata'", long: true},
	{setting: "plan_cache_mode = force_generic_plan", long: true},
	{setting: "transform_null_equals = on", long: true},
	{setting: "array_nulls = off", long: true},
	{setting: "xmloption = document", long: true},
	{setting: "backslash_quote = off", long: true},
	{setting: "row_security = off", long: true},
	{setting: "session_replication_role = replica", long: true},
	{setting: "enable_indexscan = off", long: true},
	{setting: "enable_nestloop = off", long: true},
	{setting: "force_parallel_mode = on", long: true},
	{setting: "exit_on_error = on", long: true},
	{setting: "default_transaction_deferrable = on", long: true},
	{setting: "synchronous_commit = off", long: true},
	{setting: "idle_in_transaction_session_timeout = '5s'", long: true},
	{setting: "idle_session_timeout = '1s'", since: "14"},
	{setting: "lock_timeout = '5s'", long: true},
	{setting: "statement_timeout = '5s'", long: true},
	{setting: "check_function_bodies = off", long: true},
	{setting: "jit_above_cost = 0", long: true},
}

// TestHostileSettings: with each setting that a role or a database may have, everything in this module works, or is
// refused with an error that names the setting and how to reset it.
func TestHostileSettings(t *testing.T) {
	extended(t)
	parallel(t)
	long := os.Getenv("OUTBOX_LONG") != ""
	// settings of this release of Postgres
	known := column[string](t, newPgxHandle(t, newDatabase(t)), "SELECT name FROM pg_settings")
	for _, s := range hostile {
		name, _, _ := strings.Cut(s.setting, " ")
		if s.long && !long || s.since != "" && !slices.Contains(known, name) {
			continue
		}
		same := len(s.refused) == 0 || s.refused[0] == ""
		for way, open := range ways {
			if same && !long && way != "pgx" && way != "sql-pq" { // the way makes no difference
				continue
			}
			t.Run(s.setting+"/"+way, func(t *testing.T) {
				t.Parallel()
				url := newMigratedDatabase(t)
				newPgxHandle(t, url).exec(t, "do $$ begin execute format('alter database %I set "+
					strings.ReplaceAll(s.setting, "'", "''")+
					"', current_database()); end $$")
				h := open(t, url)
				refused := false
				for _, r := range s.refused {
					refused = refused || r == "" || r == way
				}
				if err := bears(t, h); refused {
					require.ErrorContains(t, err, name)
					if way != "pgx-simple" { // pgx itself refuses some
						require.ErrorContains(t, err, "RESET")
					}
				} else {
					require.NoError(t, err)
				}
			})
		}
	}
}

// odd is a text that only UTF-8 can encode, with characters that some settings reinterpret.
const odd = `ключ é € ' \ " 100% \x41`

// bears tries everything in this module.
func bears(t *testing.T, h handle) error {
	t.Helper()
	check := checkSchema(t.Context(), h.db)
	publishes := bearsOutbox(t, h)
	if check != nil || publishes != nil { // both name the setting
		return errors.Join(check, publishes)
	}
	bearsInbox(t, h)
	bearsQueue(t, h)
	a := newAdmin(t, h)
	findings, err := a.Doctor(t.Context())
	require.NoError(t, err)
	for _, f := range findings {
		assert.Less(t, f.Severity, admin.Critical, "%+v", f)
	}
	_, err = a.Stats(t.Context(), admin.StatsConfig{Exact: true})
	require.NoError(t, err)
	list, err := a.List(t.Context(), admin.Filter{All: true}, admin.Page{})
	require.NoError(t, err)
	require.NotEmpty(t, list.Messages)
	for _, m := range list.Messages {
		assert.WithinDuration(t, time.Now(), m.CreatedAt, time.Hour)
	}
	return nil
}

// bearsOutbox publishes messages, among them one that fails at first and one that is delayed.
func bearsOutbox(t *testing.T, h handle) error {
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{}, nil)
	require.NoError(t, err)
	msg := newMessage(odd + "\x00\xff\n")
	msg.Metadata.Set(odd, odd)
	outbox.SetKey(msg, odd)
	if err := outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
		return pub.PublishContext(ctx, odd, msg)
	}); err != nil {
		return err
	}
	got := make(chan *message.Message, 10)
	topic, first := "", true
	f, err := forwarder.New(h.db, publisherFunc(func(to string, m *message.Message) error {
		if topic = to; first {
			first = false
			return errRefused
		}
		got <- m.Copy()
		return nil
	}), quickConfig(), nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	defer func() { cancel(); assert.NoError(t, <-ended) }()
	select {
	case err := <-ended:
		ended <- nil
		return err
	case m := <-got:
		assert.Equal(t, odd, topic)
		assert.Equal(t, msg.UUID, m.UUID)
		assert.Equal(t, msg.Payload, m.Payload)
		assert.Equal(t, odd, m.Metadata.Get(odd))
		assert.Equal(t, odd, m.Metadata.Get(outbox.MetadataKey))
	case <-time.After(patience):
		t.Error("nothing is published")
	}
	h.reaches(t, 0, "the message is settled", "select count(*) from outbox where published_at is null")
	return nil
}

func bearsInbox(t *testing.T, h handle) {
	handled := 0
	handler := chain(func(*message.Message) ([]*message.Message, error) { handled++; return nil, nil },
		newTx(t, h, middleware.TxConfig{}), newInbox(t, h, middleware.InboxConfig{}))
	msg := newMessage(odd)
	for range 2 {
		_, err := handler(msg.Copy())
		require.NoError(t, err)
	}
	assert.Equal(t, 1, handled)
}

func bearsQueue(t *testing.T, h handle) {
	s := storeOn(t, h, quickStore())
	id := queue.ID{Source: odd, MessageID: odd}
	_, err := s.Enqueue(t.Context(), queue.Item{
		ID: id, Topic: odd, Payload: []byte(odd + "\x00\xff"), Metadata: message.Metadata{odd: odd},
	})
	require.NoError(t, err)
	got := make(chan *queue.Message, 1)
	first := true
	cfg := quickDispatcher(map[string]queue.Handler{odd: {Handle: func(_ context.Context, m *queue.Message) error {
		if first {
			first = false
			return errRefused
		}
		got <- m
		return nil
	}}})
	d := newDispatcher(t, s, cfg)
	ended := make(chan error, 1)
	go func() { ended <- d.Run(context.Background()) }()
	defer func() { assert.NoError(t, d.Close()); assert.NoError(t, <-ended) }()
	m := within(t, "the message is handled", got)
	assert.Equal(t, odd+"\x00\xff", string(m.Payload))
	assert.Equal(t, odd, m.Metadata.Get(odd))
	untilState(t, s, id, queue.Done)
	require.NoError(t, outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
		stored, err := s.Get(ctx, id)
		if err == nil {
			assert.WithinDuration(t, time.Now(), stored.FirstSeenAt, time.Hour)
		}
		return err
	}))
}

// setOn changes a setting for new sessions of the handle's database.
func setOn(t *testing.T, h handle, setting string) {
	t.Helper()
	h.exec(t, "do $$ begin execute format('alter database %I set "+setting+"', current_database()); end $$")
}

// TestARewriteKeepsTheOrder: a long transaction has committed, and the table is rewritten before the next read, which
// waits for the rewrite. The transaction's rows look as if the rewrite had written them.
func TestARewriteKeepsTheOrder(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	other := newPgxHandle(t, url)
	h, gate := newStatementGate(t, url)
	defer gate.releaseAll()
	w := startForwarder(t, h, quickConfig())

	long, err := other.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = long.Exec(t.Context(),
		"insert into outbox (uuid, topic, key, payload) values ('first', 'orders', 'K', 'K-1')")
	require.NoError(t, err)
	before := numbered("before", 1, 200)
	w.publish(t, "orders", "", before...)
	w.arrives(t, before...)
	w.idle(t)

	reads := gate.holdReads()
	gate.arrives(t, "a read", reads...)
	require.NoError(t, long.Commit(t.Context()))
	rewrite, err := other.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = rewrite.Exec(t.Context(), "alter table outbox add column touched uuid default gen_random_uuid()")
	require.NoError(t, err)
	gate.release(reads...)
	eventually(t, func() bool {
		return other.count(t, "select count(*) from pg_locks where not granted and relation::regclass::text = 'outbox'") > 0
	}, "a read waits for the rewrite")
	require.NoError(t, rewrite.Commit(t.Context()))
	w.publish(t, "orders", "K", "K-2")
	w.arrives(t, "K-2", "K-1")
	assert.Equal(t, numbered("K-", 1, 2), w.payloads("K"))
}

// TestARoleThatIsAlteredLater: new connections have its new settings. A running forwarder publishes, or logs the
// setting and continues once it is reset.
func TestARoleThatIsAlteredLater(t *testing.T) {
	parallel(t)
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			if name != "pgx" && name != "sql-pq" {
				extended(t)
			}
			t.Parallel()
			url := newMigratedDatabase(t)
			admin := newPgxHandle(t, url)
			h := open(t, url)
			log := newLogCapture(t)
			broker := newFakeBroker()
			runForwarder(t, h, broker, quickConfig(), log)
			admin.publish(t, "orders", "K", "1")
			broker.arrives(t, "1")

			reconnect := func() {
				admin.exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "+
					"and pid <> pg_backend_pid()")
			}
			setOn(t, admin, "default_transaction_isolation = serializable")
			reconnect()
			eventually(t, func() bool { return admin.tryPublish("orders", "K", "2") == nil }, "new connections are open")
			eventually(t, func() bool {
				return slices.Contains(broker.payloads(), "2") || log.count("RESET default_transaction_isolation") > 0
			}, "the forwarder publishes or logs why not")
			admin.exec(t, "do $$ begin execute format('alter database %I reset all', current_database()); end $$")
			reconnect()
			broker.arrives(t, "2")
		})
	}
}

// TestCheckNamesTheSetting, where it is set, and the statement that resets it.
func TestCheckNamesTheSetting(t *testing.T) {
	t.Parallel()
	url := newMigratedDatabase(t)
	setOn(t, newPgxHandle(t, url), "default_transaction_isolation = serializable")
	setOn(t, newPgxHandle(t, url), "synchronous_commit = off")
	h := newPgxHandle(t, url)
	database := value[string](t, h, "select quote_ident(current_database())")
	require.ErrorContains(t, checkSchema(t.Context(), h.db), "RESET default_transaction_isolation")
	found, err := schemaProblems(t.Context(), h.db)
	require.NoError(t, err)
	cures := map[string]string{}
	for _, p := range found {
		cures[p.Object] = p.Cure
	}
	assert.Equal(t, "change it, then reconnect: ALTER DATABASE \""+database+"\" RESET default_transaction_isolation",
		cures["setting default_transaction_isolation"])
	assert.Contains(t, cures, "setting synchronous_commit")
	h.exec(t, "do $$ begin execute format('alter database %I reset all', current_database()); end $$")
}

// TestATransactionOfTheUsersWithAnotherEncoding, which we must not change: nothing is written that the server would
// alter.
func TestATransactionOfTheUsersWithAnotherEncoding(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	setOn(t, newPgxHandle(t, url), "client_encoding = LATIN1")
	h := newPgxHandle(t, url)
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	ctx, err := outbox.WithPgxTx(t.Context(), h.db, tx)
	require.NoError(t, err)
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{}, nil)
	require.NoError(t, err)
	require.ErrorContains(t, pub.PublishContext(ctx, odd, newMessage(odd)), "client_encoding")
	require.NoError(t, tx.Rollback(t.Context()))
	tx, err = h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	ctx, err = outbox.WithPgxTx(t.Context(), h.db, tx)
	require.NoError(t, err)
	_, err = storeOn(t, h, quickStore()).Enqueue(ctx, queue.Item{ID: queue.ID{Source: odd, MessageID: odd}, Topic: odd})
	require.ErrorContains(t, err, "client_encoding")
}

// TestAForwarderOfAnotherEncoding than the writers' does not start, unless its driver sets the encoding.
func TestAForwarderOfAnotherEncoding(t *testing.T) {
	parallel(t)
	for way, open := range ways {
		t.Run(way, func(t *testing.T) {
			if way != "pgx" && way != "sql-pq" {
				extended(t)
			}
			t.Parallel()
			url := newMigratedDatabase(t)
			writer := newPgxHandle(t, url)
			writer.publish(t, odd, odd, odd)
			setOn(t, writer, "client_encoding = LATIN1")
			broker := newFakeBroker()
			f, err := forwarder.New(open(t, url).db, broker, quickConfig(), nil)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := f.Drain(ctx); way != "sql-pq" {
				require.ErrorContains(t, err, "client_encoding")
				return
			}
			require.NoError(t, err)
			all := broker.all()
			require.Len(t, all, 1)
			assert.Equal(t, [3]string{odd, odd, odd}, [3]string{all[0].topic, all[0].key, all[0].payload})
		})
	}
}
