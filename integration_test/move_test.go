package integration_test

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql3 "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	wsql4 "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	wforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/move"
)

// moveTable is a kind of table that Watermill's forwarder may use.
type moveTable struct {
	name      string
	publisher func(t testing.TB, db *sql.DB) message.Publisher
	marshaler wforwarder.Marshaler
	// subscriber delivers the table's messages to Watermill's forwarder.
	subscriber func(t testing.TB, db *sql.DB) message.Subscriber
	queue      bool // otherwise it is a log
	delays     bool
}

func bytea(string) string { return "BYTEA" }

var quickly = 10 * time.Millisecond

var moveTables = []moveTable{
	{
		name: "v3 log",
		publisher: func(t testing.TB, db *sql.DB) message.Publisher {
			pub, err := wsql3.NewPublisher(db, wsql3.PublisherConfig{
				SchemaAdapter: wsql3.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true,
			}, nil)
			require.NoError(t, err)
			return pub
		},
		subscriber: func(t testing.TB, db *sql.DB) message.Subscriber {
			sub, err := wsql3.NewSubscriber(db, wsql3.SubscriberConfig{
				SchemaAdapter: wsql3.DefaultPostgreSQLSchema{}, OffsetsAdapter: wsql3.DefaultPostgreSQLOffsetsAdapter{},
				PollInterval: quickly, RetryInterval: quickly, InitializeSchema: true,
			}, nil)
			require.NoError(t, err)
			return sub
		},
	},
	v4Table("v4 log", false, gobMarshaler{}, wsql4.DefaultPostgreSQLSchema{GeneratePayloadType: bytea},
		wsql4.DefaultPostgreSQLOffsetsAdapter{}),
	v4Table("v4 queue", true, nil, wsql4.PostgreSQLQueueSchema{}, wsql4.PostgreSQLQueueOffsetsAdapter{}),
	{
		name:   "v4 delayed",
		queue:  true,
		delays: true,
		publisher: func(t testing.TB, db *sql.DB) message.Publisher {
			pub, err := wsql4.NewDelayedPostgreSQLPublisher(wsql4.BeginnerFromStdSQL(db), wsql4.DelayedPostgreSQLPublisherConfig{
				DelayPublisherConfig: delay.PublisherConfig{AllowNoDelay: true},
			})
			require.NoError(t, err)
			return pub
		},
		subscriber: func(t testing.TB, db *sql.DB) message.Subscriber {
			sub, err := wsql4.NewDelayedPostgreSQLSubscriber(wsql4.BeginnerFromStdSQL(db),
				wsql4.DelayedPostgreSQLSubscriberConfig{
					OverrideSubscriberConfig: func(c *wsql4.SubscriberConfig) error {
						c.PollInterval, c.RetryInterval = quickly, quickly
						return nil
					},
				})
			require.NoError(t, err)
			return sub
		},
	},
}

// v4Table is a table of the fourth version of watermill-sql.
func v4Table(
	name string, queue bool, marshaler wforwarder.Marshaler, schema wsql4.SchemaAdapter, offsets wsql4.OffsetsAdapter,
) moveTable {
	return moveTable{
		name: name, queue: queue, marshaler: marshaler,
		publisher: func(t testing.TB, db *sql.DB) message.Publisher {
			pub, err := wsql4.NewPublisher(wsql4.BeginnerFromStdSQL(db), wsql4.PublisherConfig{
				SchemaAdapter: schema, AutoInitializeSchema: true,
			}, nil)
			require.NoError(t, err)
			return pub
		},
		subscriber: func(t testing.TB, db *sql.DB) message.Subscriber {
			sub, err := wsql4.NewSubscriber(wsql4.BeginnerFromStdSQL(db), wsql4.SubscriberConfig{
				SchemaAdapter: schema, OffsetsAdapter: offsets, PollInterval: quickly, RetryInterval: quickly,
				InitializeSchema: true,
			}, nil)
			require.NoError(t, err)
			return sub
		},
	}
}

// gobMarshaler writes envelopes that are not JSON.
type gobMarshaler struct{}

func (gobMarshaler) Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func (gobMarshaler) Unmarshal(data []byte, v any) error {
	return gob.NewDecoder(bytes.NewReader(data)).Decode(v)
}

// oldForwarder is Watermill's forwarder with its table.
type oldForwarder struct {
	moveTable
	topic string
	db    *sql.DB
	pub   *wforwarder.Publisher
}

// newOldForwarder also creates its tables.
func newOldForwarder(t testing.TB, table moveTable, url string) *oldForwarder {
	t.Helper()
	return newOldForwarderOf(t, "forwarder_topic", table, url)
}

func newOldForwarderOf(t testing.TB, topic string, table moveTable, url string) *oldForwarder {
	t.Helper()
	f := &oldForwarder{moveTable: table, topic: topic, db: newSQLHandle(t, "postgres", url).sql}
	f.pub = wforwarder.NewPublisher(table.publisher(t, f.db), wforwarder.PublisherConfig{
		ForwarderTopic: topic, Marshaler: table.marshaler,
	})
	sub := table.subscriber(t, f.db)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := sub.Subscribe(ctx, topic)
	require.NoError(t, err)
	cancel()
	require.NoError(t, sub.Close())
	return f
}

// run forwards to pub until stop is called or the test ends.
func (f *oldForwarder) run(t testing.TB, pub message.Publisher) (stop func()) {
	t.Helper()
	sub := f.subscriber(t, f.db)
	fwd, err := wforwarder.NewForwarder(sub, pub, watermill.NopLogger{}, wforwarder.Config{
		ForwarderTopic: f.topic, Marshaler: f.marshaler,
	})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- fwd.Run(context.Background()) }()
	<-fwd.Running()
	stop = sync.OnceFunc(func() {
		require.NoError(t, fwd.Close()) // closes the subscriber too
		require.NoError(t, <-ended)
	})
	t.Cleanup(stop)
	return stop
}

// visible waits until no message of a log is behind an open transaction of any database of the server.
func (f *oldForwarder) visible(t testing.TB, h handle) {
	t.Helper()
	if f.queue {
		return
	}
	eventually(t, func() bool {
		return h.count(t, `select count(*) from "watermill_`+f.topic+
			`" where transaction_id >= pg_snapshot_xmin(pg_current_snapshot())`) == 0
	}, "all transactions that are older than the rows have ended")
}

func (f *oldForwarder) config() move.WatermillConfig {
	return move.WatermillConfig{Topic: f.topic, Marshaler: f.marshaler}
}

// awkward returns messages whose payloads and metadata are easily corrupted.
func awkward(n int) (msgs []*message.Message) {
	payloads := []string{"", "\x00\xff\xfe not UTF-8", `{"b": 1,  "a": 1e400}`, "é\u2028"}
	for i := range n {
		msg := newMessage(payloads[i%len(payloads)] + itoa(i))
		msg.Metadata = message.Metadata{"n": itoa(i), "quote": `"\ <>&`, "ünï": "\u2028\x01 é", "empty": ""}
		msgs = append(msgs, msg)
	}
	return msgs
}

// waitingRow is a row of the outbox.
type waitingRow struct {
	uuid, topic, key, payload string
	metadata                  message.Metadata
}

// waiting returns the pending messages of the outbox in the order of their ids.
func waiting(t testing.TB, h handle) (all []waitingRow) {
	t.Helper()
	for _, text := range column[string](t, h, `select jsonb_build_array(uuid, topic, key, encode(payload, 'hex'), metadata)::text from outbox
		where published_at is null and dead_at is null order by id`) {
		var s waitingRow
		var hex string
		require.NoError(t, json.Unmarshal([]byte(text), &[]any{&s.uuid, &s.topic, &s.key, &hex, &s.metadata}))
		_, err := fmt.Sscanf(hex+" ", "%x", &s.payload)
		if hex == "" {
			err = nil
		}
		require.NoError(t, err)
		all = append(all, s)
	}
	return all
}

func topicOf(i int) string { return []string{"orders", "orders", "invoices"}[i%3] }

// TestMoveFromWatermill: every message arrives once, in its place, byte for byte. With pgx from each table, with the
// other drivers from a log with a marshaler of its own and from a queue.
func TestMoveFromWatermill(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		for i, table := range moveTables {
			if h.name != "pgx" && i != 1 && i != 2 {
				continue
			}
			t.Run(table.name, func(t *testing.T) {
				// Watermill prepares a statement and executes it in two transactions, which PgBouncer may give to two servers.
				old := newOldForwarderOf(t, "Topic-"+itoa(i), table, cmp.Or(h.server, h.url))
				h.exec(t, "delete from outbox")
				msgs := awkward(50)
				var want []waitingRow
				for i, msg := range msgs {
					require.NoError(t, old.pub.Publish(topicOf(i), msg))
					want = append(want, waitingRow{
						msg.UUID, topicOf(i), "K" + itoa(i%4), string(msg.Payload), maps.Clone(msg.Metadata),
					})
				}
				pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{
					Key: func(_ string, msg *message.Message) (string, error) {
						n, err := strconv.Atoi(msg.Metadata["n"])
						return "K" + itoa(n%4), err
					},
				}, nil)
				require.NoError(t, err)

				old.visible(t, h)
				cfg := old.config()
				cfg.BatchSize = 8
				dry := cfg
				dry.DryRun = true
				r, err := move.FromWatermill(t.Context(), pub, dry)
				require.NoError(t, err)
				topics := map[string]int64{"orders": 34, "invoices": 16}
				assert.Equal(t, move.Result{Pending: 50, Moved: 50, Left: 50, Topics: topics}, r)
				assert.Empty(t, waiting(t, h))

				var seen []int64
				cfg.Progress = func(_ context.Context, r move.Result) { seen = append(seen, r.Moved) }
				r, err = move.FromWatermill(t.Context(), pub, cfg)
				require.NoError(t, err)
				assert.Equal(t, move.Result{Pending: 50, Moved: 50, Topics: topics, AuditID: r.AuditID}, r)
				assert.Positive(t, r.AuditID)
				assert.Equal(t, []int64{8, 16, 24, 32, 40, 48, 50}, seen)
				assert.Equal(t, want, waiting(t, h))

				r, err = move.FromWatermill(t.Context(), pub, cfg)
				require.NoError(t, err)
				assert.Equal(t, move.Result{Topics: map[string]int64{}}, r)
			})
		}
	})
}

// TestMoveStopsAndGoesOn: a move that ends early, by its context or a database error, is continued by the next one.
func TestMoveStopsAndGoesOn(t *testing.T) {
	t.Parallel()
	for _, table := range moveTables[1:3] {
		t.Run(table.name, func(t *testing.T) {
			h := onPgx(t)
			old := newOldForwarder(t, table, h.url)
			msgs := awkward(30)
			require.NoError(t, old.pub.Publish("orders", msgs...))
			old.visible(t, h)
			pub := newOutboxPublisher(t, h)
			cfg := old.config()
			cfg.BatchSize = 4

			ctx, cancel := context.WithCancel(t.Context())
			cfg.Progress = func(context.Context, move.Result) { cancel() }
			r, err := move.FromWatermill(ctx, pub, cfg)
			require.ErrorIs(t, err, context.Canceled)
			assert.EqualValues(t, 4, r.Moved)
			assert.Len(t, waiting(t, h), 4)

			// Messages are rolled back if their row cannot be marked as moved.
			marks := map[bool]string{false: "watermill_offsets_forwarder_topic", true: "watermill_forwarder_topic"}[table.queue]
			h.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$`)
			h.exec(t, `create trigger refuse before update on `+marks+` for each row execute function refuse()`)
			cfg.Progress = nil
			r, err = move.FromWatermill(t.Context(), pub, cfg)
			require.ErrorContains(t, err, "refused")
			assert.Zero(t, r.Moved)
			assert.Len(t, waiting(t, h), 4)

			h.exec(t, `drop function refuse cascade`)
			r, err = move.FromWatermill(t.Context(), pub, cfg)
			require.NoError(t, err)
			assert.EqualValues(t, 26, r.Moved)
			var uuids []string
			for _, msg := range msgs {
				uuids = append(uuids, msg.UUID)
			}
			assert.Equal(t, uuids, column[string](t, h, "select uuid from outbox order by id"))
		})
	}
}

// TestMoveBesideTheOldForwarder: both run and take messages from the table while it is being written. Each message is
// taken by one of them, and each of them takes some.
func TestMoveBesideTheOldForwarder(t *testing.T) {
	extended(t)
	t.Parallel()
	for _, table := range moveTables[1:3] {
		t.Run(table.name, func(t *testing.T) {
			h := onPgx(t)
			old := newOldForwarder(t, table, h.url)
			msgs := awkward(2000)
			sent := newFakeBroker()
			stop := old.run(t, sent)
			var moved atomic.Int64
			var n int // messages written: until both have taken some
			written := make(chan error, 1)
			go func() {
				for n < 100 || n < len(msgs) && (moved.Load() == 0 || len(sent.all()) == 0) {
					if err := old.pub.Publish("orders", msgs[n]); err != nil {
						written <- err
						return
					}
					n++
				}
				written <- nil
			}()
			pub := newOutboxPublisher(t, h)
			cfg := old.config()
			cfg.BatchSize = 3
			for done := false; !done; {
				select {
				case err := <-written:
					require.NoError(t, err)
					old.visible(t, h)
					done = true
				default:
				}
				r, err := move.FromWatermill(t.Context(), pub, cfg)
				require.NoError(t, err)
				moved.Add(r.Moved)
			}
			stop() // only now: stopped in the middle of a message it would publish it, but report an error
			ways := map[string]int{}
			for _, m := range sent.all() {
				ways[m.payload]++
			}
			for _, s := range waiting(t, h) {
				ways[s.payload]++
			}
			for _, msg := range msgs[:n] {
				assert.Equal(t, 1, ways[string(msg.Payload)], "%q", msg.Payload)
			}
			assert.NotEmpty(t, sent.all(), "the move took all: the test has shown nothing")
			assert.NotZero(t, moved.Load(), "the forwarder took all: the test has shown nothing")
		})
	}
}

// TestMoveOfWhatCannotBeRead: an unreadable row ends the move with an error that names the row and what to do, or
// becomes a dead message.
func TestMoveOfWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, table := range moveTables[:3] {
		t.Run(table.name, func(t *testing.T) {
			h := onPgx(t)
			old := newOldForwarder(t, table, h.url)
			publish := func(topic string, msg *message.Message) { require.NoError(t, old.pub.Publish(topic, msg)) }
			publish("orders", newMessage("first"))
			noEnvelope := newMessage(`{"canary": 1}`)
			noEnvelope.Metadata = message.Metadata{"tenant": "7", "odd": "a\ufffdb"}
			if !table.queue { // its column has type jsonb, which cannot hold this
				noEnvelope.Metadata["odd"] = "a\x00b"
			}
			require.NoError(t, table.publisher(t, old.db).Publish("forwarder_topic", noEnvelope))
			refused := newMessage("refused")
			refused.Metadata.Set("outbox-key", "K")
			publish("orders", refused)
			publish("orders", newMessage("last"))
			old.visible(t, h)
			pub := newOutboxPublisher(t, h)
			cfg := old.config()
			cfg.BatchSize = 1

			r, err := move.FromWatermill(t.Context(), pub, cfg)
			require.ErrorContains(t, err, noEnvelope.UUID)
			require.ErrorContains(t, err, "Marshaler")
			assert.NotContains(t, err.Error(), "canary")
			assert.EqualValues(t, 1, r.Moved)

			cfg.UnreadableAsDead = true
			cfg.DryRun = true
			r, err = move.FromWatermill(t.Context(), pub, cfg)
			require.NoError(t, err)
			assert.EqualValues(t, 2, r.Dead)
			cfg.DryRun = false
			r, err = move.FromWatermill(t.Context(), pub, cfg)
			require.NoError(t, err)
			assert.Equal(t, move.Result{
				Pending: 3, Moved: 3, Dead: 2, Topics: map[string]int64{"orders": 1, "forwarder_topic": 2}, AuditID: r.AuditID,
			}, r)
			assert.JSONEq(t, `{"tenant": "7", "odd": "a\ufffdb"}`,
				value[string](t, h, "select metadata::text from outbox where uuid = $1", noEnvelope.UUID))
			assert.Equal(t, string(noEnvelope.Payload), value[string](t, h,
				"select convert_from(payload, 'UTF8') from outbox where dead_at is not null and topic = 'forwarder_topic' "+
					"and uuid = $1", noEnvelope.UUID))
			assert.Equal(t, 1, h.count(t, "select count(*) from outbox where dead_at is not null "+
				"and last_error like '%outbox-key%'"))
			assert.Equal(t, []string{"first", "last"}, waitingPayloads(waiting(t, h)))
		})
	}
}

func waitingPayloads(all []waitingRow) (payloads []string) {
	for _, s := range all {
		payloads = append(payloads, s.payload)
	}
	return payloads
}

// TestMoveRefuses configurations that would send a whole table again, or nothing.
func TestMoveRefuses(t *testing.T) {
	h := onPgx(t)
	pub := newOutboxPublisher(t, h)
	refused := func(cfg move.WatermillConfig, says string) {
		t.Helper()
		_, err := move.FromWatermill(t.Context(), pub, cfg)
		require.ErrorContains(t, err, says)
	}
	refused(move.WatermillConfig{}, "there is no table")
	refused(move.WatermillConfig{MessagesTable: "inbox"}, "is not a table of watermill-sql")
	refused(move.WatermillConfig{BatchSize: -1}, "WatermillConfig.BatchSize")
	_, err := move.ToWatermill(t.Context(), nil, move.WatermillConfig{})
	require.ErrorIs(t, err, outbox.ErrNoDB)

	old := newOldForwarder(t, moveTables[0], h.url)
	require.NoError(t, old.pub.Publish("orders", newMessage("1")))
	refused(move.WatermillConfig{ConsumerGroup: "mistyped"}, `groups that have are [""]`)
	refused(move.WatermillConfig{OffsetsTable: "nowhere"}, "start Watermill's forwarder once")

	// A table that was restored from another server has transaction ids of the future.
	h.exec(t, `update watermill_forwarder_topic set transaction_id = '1000000000'`)
	refused(move.WatermillConfig{}, "restored from another server")
	assert.Empty(t, waiting(t, h))

	// So may its position, after the table was emptied: messages written here would never be delivered.
	h.exec(t, `update watermill_forwarder_topic set transaction_id = '3'`)
	h.exec(t, `update watermill_offsets_forwarder_topic set last_processed_transaction_id = '1000000000'`)
	refused(move.WatermillConfig{}, "restored from another server")
	_, err = move.ToWatermill(t.Context(), h.db, move.WatermillConfig{})
	require.ErrorContains(t, err, "restored from another server")

	// A group that has never read starts at the beginning.
	h.exec(t, `delete from watermill_offsets_forwarder_topic`)
	r, err := move.FromWatermill(t.Context(), pub, move.WatermillConfig{})
	require.NoError(t, err)
	assert.EqualValues(t, 1, r.Moved)
}

// TestMoveWaitsForOlderTransactions: a message behind an open transaction is left, counted, and not overtaken.
func TestMoveWaitsForOlderTransactions(t *testing.T) {
	h := onPgx(t)
	old := newOldForwarder(t, moveTables[0], h.url)
	tx, err := old.db.Begin()
	require.NoError(t, err)
	old.publishIn(t, tx, "1")
	require.NoError(t, old.pub.Publish("orders", newMessage("2")))
	pub := newOutboxPublisher(t, h)
	r, err := move.FromWatermill(t.Context(), pub, move.WatermillConfig{})
	require.NoError(t, err)
	assert.EqualValues(t, 1, r.Left)
	assert.Zero(t, r.Moved)
	require.NoError(t, tx.Commit())
	old.visible(t, h)
	r, err = move.FromWatermill(t.Context(), pub, move.WatermillConfig{})
	require.NoError(t, err)
	assert.EqualValues(t, 0, r.Left)
	assert.Equal(t, []string{"1", "2"}, waitingPayloads(waiting(t, h)))
}

// TestMoveOfWhatAStuckForwarderHolds: the error names the locked row, the session that locked it, and what to do; after
// that all messages are moved.
func TestMoveOfWhatAStuckForwarderHolds(t *testing.T) {
	t.Parallel()
	for _, table := range moveTables[1:3] {
		t.Run(table.name, func(t *testing.T) {
			h := onPgx(t)
			old := newOldForwarder(t, table, h.url)
			require.NoError(t, old.pub.Publish("orders", awkward(3)...))
			old.visible(t, h)
			broker := newFakeBroker()
			tried := make(chan struct{}, 100)
			broker.answers(func(string, *message.Message) error { tried <- struct{}{}; return errors.New("refused") })
			stop := old.run(t, broker)
			within(t, "it holds a message that it cannot publish", tried)
			holds := map[bool]string{
				false: `the position of consumer group "" in public.watermill_offsets_forwarder_topic`,
				true:  `row with offset "1" in public.watermill_forwarder_topic`,
			}[table.queue]

			pub := newOutboxPublisher(t, h)
			cfg := old.config()
			cfg.LockTimeout = 200 * time.Millisecond
			_, err := move.FromWatermill(t.Context(), pub, cfg)
			require.ErrorContains(t, err, holds+" was locked for longer than WatermillConfig.LockTimeout (200ms), "+
				"perhaps by process ")
			require.ErrorContains(t, err, "stop Watermill's forwarder")
			require.ErrorContains(t, err, "SELECT pg_terminate_backend(")
			if table.marshaler == nil {
				r := ctl{t: t, url: h.url}.run("import", "watermill-sql", "--dry-run", "--timeout", "200ms")
				assert.Equal(t, 1, r.code)
				assert.Contains(t, r.err, "for longer than --timeout (200ms), perhaps by process ")
			}

			stop()
			cfg.LockTimeout = 0 // the default: its server process may need a while to end
			r, err := move.FromWatermill(t.Context(), pub, cfg)
			require.NoError(t, err)
			assert.EqualValues(t, 3, r.Moved)
		})
	}
}

// TestMoveThereAndBack: Watermill's forwarder publishes the messages moved to its table, and moved back they are
// unchanged.
func TestMoveThereAndBack(t *testing.T) {
	t.Parallel()
	for _, table := range moveTables {
		t.Run(table.name, func(t *testing.T) {
			h := onPgx(t)
			old := newOldForwarder(t, table, h.url)
			msgs := awkward(40)
			outbox.SetKey(msgs[7], "K")
			delayed := newMessage("delayed")
			outbox.SetDelay(delayed, time.Hour)
			pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
			require.NoError(t, err)
			require.NoError(t, pub.Publish("orders", append(msgs, delayed)...))
			before := waiting(t, h)
			h.exec(t, `insert into outbox (uuid, topic, payload, dead_at) values ('dead', 'orders', '', now())`)

			cfg := old.config()
			cfg.BatchSize = 16
			fwd, err := forwarder.New(h.db, newFakeBroker(), forwarder.Config{Topics: []string{"others"}}, nil)
			require.NoError(t, err)
			running := make(chan error, 1)
			go func() { running <- fwd.Run(context.Background()) }()
			<-fwd.Running()
			_, err = move.ToWatermill(t.Context(), h.db, cfg)
			require.ErrorContains(t, err, "a forwarder of this outbox runs")
			require.NoError(t, fwd.Close())
			require.NoError(t, <-running)

			dry := cfg
			dry.DryRun = true
			r, err := move.ToWatermill(t.Context(), h.db, dry)
			require.NoError(t, err)
			assert.EqualValues(t, 41, r.Left)
			left := map[bool]int64{false: 1, true: 0}[table.delays]
			assert.Equal(t, 41-left, r.Moved)
			assert.Equal(t, before, waiting(t, h))

			r, err = move.ToWatermill(t.Context(), h.db, cfg)
			require.NoError(t, err)
			assert.Equal(t, move.Result{
				Pending: 41, Moved: 41 - left, Left: left, Topics: map[string]int64{"orders": 41 - left}, AuditID: r.AuditID,
			}, r)
			assert.Len(t, waiting(t, h), int(left))
			assert.Equal(t, 1, h.count(t, "select count(*) from outbox where dead_at is not null"))

			old.visible(t, h)
			r, err = move.FromWatermill(t.Context(), pub, cfg)
			require.NoError(t, err)
			assert.Equal(t, 41-left, r.Moved)
			after := waiting(t, h)
			if left == 1 {
				before = append(before[40:], before[:40]...)
			}
			assert.Equal(t, before, after)
			assert.Equal(t, 1, h.count(t, "select count(*) from outbox where due_at > now() + interval '50 minutes'"))

			_, err = move.ToWatermill(t.Context(), h.db, cfg)
			require.NoError(t, err)
			sent := newFakeBroker()
			old.run(t, sent)
			var moved []string
			for _, msg := range msgs {
				moved = append(moved, string(msg.Payload))
			}
			sent.arrives(t, moved...)
			assert.Equal(t, moved, sent.payloads(), "the delayed one is not due")
		})
	}
}

// TestMoveToATableOfAnotherType: an envelope that the column cannot hold is refused with the reason.
func TestMoveToATableOfAnotherType(t *testing.T) {
	h := onPgx(t)
	newOldForwarder(t, moveTables[0], h.url)
	h.publish(t, "orders", "K", "1")
	_, err := move.ToWatermill(t.Context(), h.db, move.WatermillConfig{Marshaler: gobMarshaler{}})
	require.ErrorContains(t, err, "Marshaler does not write JSON")
	assert.Len(t, waiting(t, h), 1)
}
