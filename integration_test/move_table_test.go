package integration_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/move"
)

// TestMoveFromTable moves a home-made table, given a mapping of its columns of any type.
func TestMoveFromTable(t *testing.T) {
	t.Parallel()
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
