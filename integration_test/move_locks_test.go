package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/move"
)

// TestMoveNamesWhoItWaitedFor: the error advises ending the blocking session only, or none if the move was not waiting
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
