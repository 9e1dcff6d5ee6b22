package integration_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	wsql3 "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	wsql4 "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	wforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/move"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	outboxmove "github.com/millrace-go/watermill-outbox/move"
)

func newSchemaAdapter(t testing.TB, h handle, cfg outboxmove.SchemaAdapterConfig) wsql3.SchemaAdapter {
	t.Helper()
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{
		Key: func(_ string, msg *message.Message) (string, error) { return "K" + msg.Metadata["n"], nil },
	}, nil)
	require.NoError(t, err)
	schema, err := outboxmove.NewSchemaAdapter(pub, cfg)
	require.NoError(t, err)
	return schema
}

// inEnvelopes returns a publisher of Watermill's forwarder.
func inEnvelopes(pub message.Publisher, topic string, marshaler wforwarder.Marshaler) message.Publisher {
	return wforwarder.NewPublisher(pub, wforwarder.PublisherConfig{ForwarderTopic: topic, Marshaler: marshaler})
}

// rowsOf returns the expected outbox rows if the first cut messages were published to one topic and the others to the
// next.
func rowsOf(msgs []*message.Message, cut int) (rows []waitingRow) {
	for i, msg := range msgs {
		topic := "orders"
		if i >= cut {
			topic = "invoices"
		}
		rows = append(rows, waitingRow{msg.UUID, topic, "K" + msg.Metadata["n"], string(msg.Payload), msg.Metadata})
	}
	return rows
}

// TestSchemaAdapter: publishers of watermill-sql write to the outbox in their transaction, byte for byte, and envelopes
// of Watermill's forwarder are unwrapped.
func TestSchemaAdapter(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, topic string
		marshaler   wforwarder.Marshaler
	}{{"default", "", nil}, {"configured", "Wrapped", gobMarshaler{}}} {
		for _, driver := range []string{"pgx", "postgres"} {
			t.Run("v3 "+driver+" "+test.name, func(t *testing.T) {
				t.Parallel()
				h := newSQLHandle(t, driver, newMigratedDatabase(t))
				schema := newSchemaAdapter(t, h, outboxmove.SchemaAdapterConfig{
					ForwarderTopic: test.topic, Marshaler: test.marshaler,
				})
				msgs := awkward(9)
				for _, commit := range []bool{false, true} {
					tx, err := h.sql.Begin()
					require.NoError(t, err)
					defer func() { _ = tx.Rollback() }()
					pub, err := wsql3.NewPublisher(tx, wsql3.PublisherConfig{SchemaAdapter: schema}, nil)
					require.NoError(t, err)
					require.NoError(t, pub.Publish("orders", msgs[:5]...))
					require.NoError(t, inEnvelopes(pub, test.topic, test.marshaler).Publish("invoices", msgs[5:]...))
					if !commit {
						require.NoError(t, tx.Rollback())
						assert.Empty(t, waiting(t, h))
						continue
					}
					require.NoError(t, tx.Commit())
				}
				assert.Equal(t, rowsOf(msgs, 5), waiting(t, h))
			})
		}
	}
	t.Run("v4", func(t *testing.T) {
		h := onPgx(t)
		schema := schemaV4{outbox: newSchemaAdapter(t, h, outboxmove.SchemaAdapterConfig{})}
		msgs := awkward(9)
		tx, err := h.pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		pub, err := wsql4.NewPublisher(wsql4.TxFromPgx(tx), wsql4.PublisherConfig{SchemaAdapter: schema}, nil)
		require.NoError(t, err)
		require.NoError(t, pub.Publish("orders", msgs[:5]...))
		require.NoError(t, inEnvelopes(pub, "", nil).Publish("invoices", msgs[5:]...))
		assert.Empty(t, waiting(t, h))
		require.NoError(t, tx.Commit(t.Context()))
		assert.Equal(t, rowsOf(msgs, 5), waiting(t, h))
	})
}

// TestSchemaAdapterRefuses: messages that cannot be stored, payloads that are not envelopes, subscribers.
func TestSchemaAdapterRefuses(t *testing.T) {
	t.Parallel()
	h := newSQLHandle(t, "pgx", newMigratedDatabase(t))
	schema := newSchemaAdapter(t, h, outboxmove.SchemaAdapterConfig{})
	pub, err := wsql3.NewPublisher(h.sql, wsql3.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, nil)
	require.NoError(t, err)
	require.NoError(t, pub.Publish("orders"), "nothing")
	for topic, msgs := range map[string][]*message.Message{
		"orders":          {newMessage("good"), message.NewMessage("", nil)},
		"forwarder_topic": {newMessage("no envelope")},
		"missing":         {nil},
	} {
		require.ErrorIs(t, pub.Publish(topic, msgs...), outbox.ErrInvalidMessage, topic)
	}
	require.ErrorContains(t, pub.Publish("forwarder_topic", newMessage("x")), "SchemaAdapterConfig.ForwarderTopic")
	assert.Empty(t, waiting(t, h))

	_, err = h.sql.Exec(schema.SelectQuery("orders", "", wsql3.DefaultPostgreSQLOffsetsAdapter{}).Query)
	require.ErrorContains(t, err, "use forwarder.Subscriber")
	_, err = schema.UnmarshalMessage(nil)
	require.ErrorContains(t, err, "use forwarder.Subscriber")
	_, err = outboxmove.NewSchemaAdapter(nil, outboxmove.SchemaAdapterConfig{})
	require.ErrorContains(t, err, "publisher is nil")
}

// TestSchemaAdapterKeepsDelays: delay.NewPublisher around the publisher of watermill-sql delays messages, also those in
// envelopes, which do not contain the delay.
func TestSchemaAdapterKeepsDelays(t *testing.T) {
	t.Parallel()
	h := newSQLHandle(t, "pgx", newMigratedDatabase(t))
	schema := newSchemaAdapter(t, h, outboxmove.SchemaAdapterConfig{})
	pub, err := wsql3.NewPublisher(h.sql, wsql3.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, nil)
	require.NoError(t, err)
	delayed, err := delay.NewPublisher(pub, delay.PublisherConfig{
		DefaultDelayGenerator: func(delay.DefaultDelayGeneratorParams) (delay.Delay, error) {
			return delay.For(time.Hour), nil
		},
	})
	require.NoError(t, err)
	require.NoError(t, delayed.Publish("orders", newMessage("plain")))
	require.NoError(t, inEnvelopes(delayed, "", nil).Publish("orders", newMessage("in an envelope")))
	assert.Equal(t, []string{"plain", "in an envelope"}, column[string](t, h,
		"select convert_from(payload, 'UTF8') from outbox where due_at > now() + interval '50 minutes' order by id"))
}

// TestMoveUnderTraffic: writers switch to the SchemaAdapter one after another while they write and Watermill's
// forwarder runs. Ours starts when the other has nothing left. No message is lost, none that was rolled back is
// published, and the messages of a writer are in order.
func TestMoveUnderTraffic(t *testing.T) {
	t.Parallel()
	const writers, before, after = 8, 40, 40
	h := newSQLHandle(t, "postgres", newMigratedDatabase(t))
	old := newOldForwarder(t, moveTables[0], h.url)
	sent := newFakeBroker()
	stop := old.run(t, sent)
	ours := newSchemaAdapter(t, h, outboxmove.SchemaAdapterConfig{})

	// write is one transaction of a service: a row of its own and two messages; some are rolled back.
	write := func(schema wsql3.SchemaAdapter, writer, n int) error {
		tx, err := h.sql.Begin()
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		pub, err := wsql3.NewPublisher(tx, wsql3.PublisherConfig{SchemaAdapter: schema}, nil)
		if err != nil {
			return err
		}
		back := n%7 == 3
		for part := range 2 {
			msg := newMessage(fmt.Sprintf("%d/%d/%d %t", writer, n, part, back))
			msg.Metadata.Set("n", itoa(writer))
			if err := inEnvelopes(pub, "", nil).Publish("orders", msg); err != nil {
				return err
			}
		}
		if back {
			return tx.Rollback()
		}
		return tx.Commit()
	}
	wanted := func(writer int) (list []string) {
		for n := range before + after {
			for part := range 2 {
				if n%7 != 3 {
					list = append(list, fmt.Sprintf("%d/%d/%d false", writer, n, part))
				}
			}
		}
		return list
	}
	over := make(chan struct{}, writers) // a value for each writer that has switched
	drained := make(chan struct{})
	var all sync.WaitGroup
	errs := make(chan error, writers)
	for writer := range writers {
		all.Go(func() {
			for n := range before + after {
				schema := wsql3.SchemaAdapter(wsql3.DefaultPostgreSQLSchema{})
				switch turn := before/2 + writer*before/2/writers; {
				case n == turn:
					over <- struct{}{}
					fallthrough
				case n > turn:
					schema = ours
				}
				if n == before+after/2 { // the rest is written while our forwarder runs
					<-drained
				}
				if err := write(schema, writer, n); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for range writers {
		within(t, "a writer switches", over)
	}
	eventually(t, func() bool { return h.count(t, drainedStatement(t)) == 0 }, "Watermill's forwarder has nothing left")
	stop()
	byWatermill := len(sent.payloads())
	w := world{handle: h, fakeBroker: sent, log: newLogCapture(t)}
	w.join(t, h, quickConfig())
	close(drained)
	all.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
	for writer := range writers {
		sent.arrives(t, wanted(writer)...)
	}
	payloads := sent.payloads()
	for writer := range writers {
		got := slices.DeleteFunc(slices.Clone(payloads), func(p string) bool {
			return !strings.HasPrefix(p, itoa(writer)+"/")
		})
		assert.Equal(t, wanted(writer), got, "writer %d", writer)
	}
	t.Logf("%d messages by Watermill's forwarder, %d by ours", byWatermill, len(payloads)-byWatermill)
	assert.NotZero(t, byWatermill)
	assert.NotEqual(t, byWatermill, len(payloads))
}

// drainedStatement returns the statement of moving.md that counts the messages left for Watermill's forwarder.
func drainedStatement(t testing.TB) string {
	t.Helper()
	list := movingPage(t)["Which way"]
	require.NotEmpty(t, list)
	return strings.TrimSuffix(strings.TrimSpace(list[len(list)-1]), ";")
}

// TestMoveNamesWhoItWaitedFor: the error advises ending only the blocking session, or none if the move was not waiting
// for a row.
func TestMoveNamesWhoItWaitedFor(t *testing.T) {
	t.Parallel()
	owner, as := newRoles(t)
	mover := as("mover")
	owner.exec(t, "CREATE TABLE my_outbox (id int PRIMARY KEY, sent boolean DEFAULT false)")
	owner.exec(t, "INSERT INTO my_outbox SELECT generate_series(9, 1, -1)")
	owner.exec(t, "INSERT INTO outbox (uuid, topic, payload) VALUES ('1', 'orders', ''), ('2', 'orders', '')")
	newOldForwarder(t, moveTables[0], owner.url)
	owner.exec(t, `GRANT ALL ON my_outbox, watermill_forwarder_topic, watermill_offsets_forwarder_topic TO "`+
		role(owner)+`mover"`)
	pub := newOutboxPublisher(t, mover)
	fromTable := func() error {
		_, err := move.FromTable(t.Context(), pub, move.TableConfig{
			Table: "my_outbox", Pending: "NOT sent", Done: "sent = true",
			Columns: move.Columns{Topic: "'orders'", Payload: "'x'"}, LockTimeout: 100 * time.Millisecond,
		})
		return err
	}
	toWatermill := func() error {
		_, err := move.ToWatermill(t.Context(), mover.db, move.WatermillConfig{LockTimeout: 100 * time.Millisecond})
		return err
	}
	for name, c := range map[string]struct {
		call    func() error
		by      string // the lock that it waits for
		besides string // a lock of another session, taken later
		row     string // "" = it was not waiting for a row
	}{
		"row": {
			fromTable, "SELECT FROM my_outbox WHERE id = 2 FOR UPDATE", "SELECT FROM my_outbox WHERE id > 2 FOR UPDATE",
			`row with id "2"`,
		},
		"message": {
			toWatermill, "SELECT FROM outbox WHERE uuid = '1' FOR UPDATE", "SELECT FROM outbox WHERE uuid = '2' FOR UPDATE",
			`message with id "1"`,
		},
		"forwarders": {toWatermill, (*core.DB)(owner.db).Render(sqltext.LockForwarders), "SELECT FROM outbox FOR UPDATE", ""},
		"audit log":  {fromTable, "LOCK TABLE outbox_audit IN EXCLUSIVE MODE", "SELECT FROM outbox FOR UPDATE", ""},
	} {
		besides := begin(t, owner, "BEGIN", c.besides)
		by := begin(t, owner, "BEGIN", c.by)
		err := c.call()
		require.ErrorContains(t, err, "Config.LockTimeout (100ms)", name)
		if c.row == "" {
			assert.NotContains(t, err.Error(), "pg_terminate_backend", name)
			assert.NotContains(t, err.Error(), "row", name)
		} else {
			assert.ErrorContains(t, err, c.row, name)
			assert.ErrorContains(t, err, "perhaps by process "+itoa(int(by.PgConn().PID()))+" of role", name)
			assert.NotContains(t, err.Error(), "began", "%s: outbox_mover may not see the start time", name)
		}
		for _, conn := range []*pgx.Conn{by, besides} {
			_, err := conn.Exec(t.Context(), "ROLLBACK")
			require.NoError(t, err)
		}
	}
}

// TestMoveWithoutLockTimeout waits without limit, even if the database or the role sets one.
func TestMoveWithoutLockTimeout(t *testing.T) {
	t.Parallel()
	url := newMigratedDatabase(t)
	owner, h := newPgxHandle(t, url), newPgxHandle(t, url+"&lock_timeout=100&application_name=mover")
	owner.exec(t, "CREATE TABLE my_outbox AS SELECT 1 AS id, false AS sent")
	locks := begin(t, owner, "BEGIN", "SELECT FROM my_outbox FOR UPDATE")
	moved := make(chan error, 1)
	go func() {
		_, err := move.FromTable(context.Background(), newOutboxPublisher(t, h), move.TableConfig{
			Table: "my_outbox", Pending: "NOT sent", Done: "sent = true",
			Columns: move.Columns{Topic: "'orders'", Payload: "'x'"}, LockTimeout: -1,
		})
		moved <- err
	}()
	eventually(t, func() bool {
		return len(moved) > 0 || owner.count(t, `SELECT count(*)::int FROM pg_stat_activity WHERE application_name = 'mover' AND datname = current_database()
			AND wait_event_type = 'Lock' AND query_start < clock_timestamp() - interval '300 ms'`) == 1
	}, "it waits")
	_, err := locks.Exec(t.Context(), "ROLLBACK")
	require.NoError(t, err)
	require.NoError(t, within(t, "the move", moved))
}

// TestMoveThatCannotEndItsEntry has moved the messages nevertheless, and reports how many are left.
func TestMoveThatCannotEndItsEntry(t *testing.T) {
	h := onPgx(t)
	newOldForwarder(t, moveTables[0], h.url)
	h.exec(t, "ALTER TABLE outbox_audit ADD CHECK (ended_at IS NULL)")
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload, due_at) VALUES ('1', 'orders', '', NULL), ('2', 'orders', '', "+
		"now() + interval '1 hour')")
	r, err := move.ToWatermill(t.Context(), h.db, move.WatermillConfig{})
	require.ErrorContains(t, err, "audit log")
	assert.EqualValues(t, 1, r.Moved)
	assert.EqualValues(t, 1, r.Left)
}

// publishIn publishes to a log of watermill-sql in a transaction.
func (f *oldForwarder) publishIn(t testing.TB, tx *sql.Tx, payload string) {
	t.Helper()
	pub, err := wsql3.NewPublisher(tx, wsql3.PublisherConfig{SchemaAdapter: wsql3.DefaultPostgreSQLSchema{}}, nil)
	require.NoError(t, err)
	envelopes := wforwarder.NewPublisher(pub, wforwarder.PublisherConfig{ForwarderTopic: f.topic})
	require.NoError(t, envelopes.Publish("orders", newMessage(payload)))
}

// TestMoveOfInterleavedTransactions: a log's position is a transaction and an offset, so its rows are read in the order
// of both. Here older transactions write the higher offsets, and each batch is one row: if read by offset alone, the
// position would pass the rows of the older ones, and they would never be moved.
func TestMoveOfInterleavedTransactions(t *testing.T) {
	h := onPgx(t)
	old := newOldForwarder(t, moveTables[0], h.url)
	var txs []*sql.Tx
	for range 4 {
		tx, err := old.db.Begin()
		require.NoError(t, err)
		var xid string
		// transactions in this order, offsets in the opposite one
		require.NoError(t, tx.QueryRow("select pg_current_xact_id()::text").Scan(&xid))
		txs = append(txs, tx)
	}
	var want []string
	for i := range txs {
		last := len(txs) - 1 - i
		old.publishIn(t, txs[last], "of "+itoa(last))
		old.publishIn(t, txs[last], "more of "+itoa(last))
		want = append(want, "of "+itoa(i), "more of "+itoa(i))
	}
	for _, tx := range txs {
		require.NoError(t, tx.Commit())
	}
	old.visible(t, h)
	cfg := old.config()
	cfg.BatchSize = 1
	r, err := move.FromWatermill(t.Context(), newOutboxPublisher(t, h), cfg)
	require.NoError(t, err)
	assert.EqualValues(t, 8, r.Moved)
	assert.Zero(t, r.Left)
	assert.Equal(t, want, waitingPayloads(waiting(t, h)))
}

// TestMoveBackInTheOrderOfIDs: a key with two topics is moved back in order, in three batches, although the table, and
// the lane index that the planner may choose, have the rows in another order.
func TestMoveBackInTheOrderOfIDs(t *testing.T) {
	h := onPgx(t)
	old := newOldForwarder(t, moveTables[0], h.url)
	var want []string
	for i := range 12 {
		h.publish(t, []string{"orders", "invoices"}[i%2], "K"+itoa(i%3), itoa(i))
		want = append(want, itoa(i))
	}
	h.exec(t, "update outbox set attempts = attempts where id <= 6") // to the end of the table
	cfg := old.config()
	cfg.BatchSize = 5
	batches := 0
	cfg.Progress = func(context.Context, move.Result) { batches++ }
	r, err := move.ToWatermill(t.Context(), h.db, cfg)
	require.NoError(t, err)
	assert.EqualValues(t, 12, r.Moved)
	assert.Zero(t, r.Left)
	assert.Equal(t, 3, batches)

	old.visible(t, h)
	_, err = move.FromWatermill(t.Context(), newOutboxPublisher(t, h), old.config())
	require.NoError(t, err)
	assert.Equal(t, want, waitingPayloads(waiting(t, h)))
}

// TestMoveOfDelays: a delay that is only in the row of a delayed queue becomes the delay of the message. If the message
// in its envelope has another time, that one counts, as it does when Watermill's forwarder publishes it.
func TestMoveOfDelays(t *testing.T) {
	h := onPgx(t)
	old := newOldForwarder(t, moveTables[3], h.url)
	ofRow, own := newMessage("later"), newMessage("later")
	ofRow.SetContext(delay.WithContext(t.Context(), delay.For(time.Hour)))
	require.NoError(t, old.pub.Publish("orders", ofRow))
	require.Empty(t, ofRow.Metadata)
	delay.Message(own, delay.For(time.Hour))
	until := own.Metadata[delay.DelayedUntilKey]
	own.SetContext(delay.WithContext(t.Context(), delay.For(2*time.Hour)))
	require.NoError(t, old.pub.Publish("orders", own))
	require.Equal(t, 1, h.count(t, `select count(*) from watermill_forwarder_topic
		where (metadata->>'`+delay.DelayedUntilKey+`')::timestamptz > now() + interval '110 minutes'`),
		"the row has its own time")
	_, err := move.FromWatermill(t.Context(), newOutboxPublisher(t, h), old.config())
	require.NoError(t, err)
	assert.Equal(t, 2, h.count(t, "select count(*) from outbox where due_at between now() + interval '50 minutes' "+
		"and now() + interval '70 minutes'"))
	assert.Equal(t, until, waiting(t, h)[1].metadata[delay.DelayedUntilKey])
}

// TestMoveFromTable moves a home-made table, given a mapping of its columns of any type.
func TestMoveFromTable(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		h.exec(t, `create table my_outbox (id bigserial primary key, event_id uuid default gen_random_uuid(), aggregate_id int, body jsonb, raw bytea,
			headers jsonb, run_at timestamptz, sent_at timestamptz)`)
		h.exec(t, `insert into my_outbox (aggregate_id, body, raw, headers, run_at)
			select n % 3, jsonb_build_object('n', n), '\x00ff'::bytea, '{"a": "b", "n": 1, "none": null, "deep": {"x": [1]}}',
			       case when n = 20 then now() + interval '1 hour' end from generate_series(1, 20) n`)
		h.exec(t, `insert into my_outbox (sent_at) values (now())`)
		pub := newOutboxPublisher(t, h)
		cfg := move.TableConfig{
			Table: "my_outbox", Pending: "sent_at IS NULL", Done: "sent_at = now()", BatchSize: 6,
			Columns: move.Columns{
				UUID: "event_id", Topic: "'orders'", Key: "aggregate_id", Payload: "body", Metadata: "headers", DueAt: "run_at",
			},
		}
		dry := cfg
		dry.DryRun = true
		r, err := move.FromTable(t.Context(), pub, dry)
		require.NoError(t, err)
		assert.Equal(t, move.Result{Pending: 20, Moved: 20, Left: 20, Topics: map[string]int64{"orders": 20}}, r)
		assert.Empty(t, waiting(t, h))

		r, err = move.FromTable(t.Context(), pub, cfg)
		require.NoError(t, err)
		assert.Equal(t, move.Result{Pending: 20, Moved: 20, Topics: map[string]int64{"orders": 20}, AuditID: r.AuditID}, r)
		uuids := column[string](t, h, "select event_id::text from my_outbox where body is not null order by id")
		all := waiting(t, h)
		require.Len(t, all, 20)
		for i, m := range all[:19] {
			n := itoa(i + 1)
			assert.Equal(t, waitingRow{uuids[i], "orders", itoa((i + 1) % 3), `{"n": ` + n + `}`,
				message.Metadata{"a": "b", "n": "1", "deep": `{"x": [1]}`, "outbox_key": itoa((i + 1) % 3)}}, m)
		}
		assert.Equal(t, 1, h.count(t, "select count(*) from outbox where due_at > now() + interval '50 minutes'"))

		// Bytes stay bytes, and rows may be deleted.
		h.exec(t, "update my_outbox set sent_at = null where body is not null")
		h.exec(t, "delete from outbox")
		cfg.Columns = move.Columns{Topic: "'raw'", Payload: "raw"}
		cfg.Done = "delete"
		r, err = move.FromTable(t.Context(), pub, cfg)
		require.NoError(t, err)
		assert.EqualValues(t, 20, r.Moved)
		assert.Equal(t, "\x00\xff", waiting(t, h)[0].payload)
		assert.Equal(t, 1, h.count(t, "select count(*) from my_outbox"))
	})
}

// TestMoveFromTableRefuses missing or wrong configuration, and then moves nothing.
func TestMoveFromTableRefuses(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `create table my_outbox (id text, topic text, body text, sent boolean default false)`)
	h.exec(t, `insert into my_outbox values ('1', 'orders', 'one'), ('1', 'orders', 'two'), ('2', '', 'no topic')`)
	pub := newOutboxPublisher(t, h)
	good := move.TableConfig{
		Table: "my_outbox", Pending: "not sent", Done: "sent = true", Columns: move.Columns{Topic: "topic", Payload: "body"},
	}
	for says, change := range map[string]func(*move.TableConfig){
		"TableConfig.Table is empty":   func(c *move.TableConfig) { c.Table = "" },
		"TableConfig.Done is empty":    func(c *move.TableConfig) { c.Done = " " },
		"there is no table nowhere":    func(c *move.TableConfig) { c.Table = "nowhere" },
		`the table has no column "no"`: func(c *move.TableConfig) { c.ID = "no" },
		"TableConfig.Columns.Payload":  func(c *move.TableConfig) { c.Columns.Payload = "mistyped" },
		"TableConfig.BatchSize":        func(c *move.TableConfig) { c.BatchSize = -1 },
		"TableConfig.LockTimeout":      func(c *move.TableConfig) { c.LockTimeout = -2 },
		"TableConfig.Reason":           func(c *move.TableConfig) { c.Reason = "\x00" },
		"row with id 2":                func(*move.TableConfig) {}, // its topic is empty
		"must be unique":               func(c *move.TableConfig) { c.Columns.Topic, c.BatchSize = "'orders'", 1 },
		"2 of the 3 rows still fit TableConfig.Pending after TableConfig.Done": func(c *move.TableConfig) {
			c.Columns.Topic, c.Done = "'orders'", "sent = (body = 'one')"
		},
	} {
		cfg := good
		change(&cfg)
		_, err := move.FromTable(t.Context(), pub, cfg)
		require.ErrorContains(t, err, says)
		assert.Empty(t, waiting(t, h))
	}
}
