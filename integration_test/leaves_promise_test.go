package integration_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRollPromiseOfAnother has the check that a roll made on the default go away before the leaf is attached, as
// another roll does: without it the server would read the default while all others wait.
func TestRollPromiseOfAnother(t *testing.T) {
	t.Parallel()
	h := newLeaves(t, 100)
	h.writeRows(t, 300, "")
	validated := 0
	r := watchedHandle(t, h, func(s string, sent bool) bool {
		if sent && strings.Contains(s, "VALIDATE CONSTRAINT") {
			validated++
		}
		if !sent && validated == 1 && strings.Contains(s, "SHARE UPDATE EXCLUSIVE") {
			h.exec(t, `ALTER TABLE outbox_default DROP CONSTRAINT IF EXISTS outbox_default_bound`)
		}
		return true
	}).roll(t)
	require.Equal(t, []string{"made outbox_p1", "made outbox_p2", "made outbox_p3"}, did(r))
	require.Equal(t, 4, validated, "once more")
}

// TestRollIgnoresStatementTimeout has a role whose statements end soon, and the default in use for longer.
func TestRollIgnoresStatementTimeout(t *testing.T) {
	t.Parallel()
	h := newLeaves(t, 100)
	h.writeRows(t, 300, "")
	h.exec(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = 1000', current_database()); END $$`)
	var end func()
	short := watchedHandle(t, h, func(s string, sent bool) bool {
		if !sent && end == nil && strings.Contains(s, "VALIDATE CONSTRAINT") {
			end = h.open(t, `LOCK TABLE ONLY outbox_default IN SHARE UPDATE EXCLUSIVE MODE`)
			time.AfterFunc(2*time.Second, end)
		}
		return true
	})
	require.Contains(t, did(short.roll(t)), "made outbox_p1")
	require.NotNil(t, end)
}
