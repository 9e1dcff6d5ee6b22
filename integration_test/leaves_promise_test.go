package integration_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// TestRollPromiseOfAnother has the check that a roll made on the default go away before the leaf is attached, as
// another roll does: without it the server would read the default while all others wait.
func TestRollPromiseOfAnother(t *testing.T) {
	extended(t)
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

// TestRollIgnoresTimeouts has a role whose statements end soon, and the default and a leaf in use for longer.
func TestRollIgnoresTimeouts(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 100)
	h.writeRows(t, 300, settledLongAgo)
	use := soonCancelled(t, h)
	uses := []struct{ after, before, lock string }{ // what reads all of a table, and a lock that it waits for
		{"", "VALIDATE CONSTRAINT", `LOCK TABLE ONLY outbox_default IN SHARE UPDATE EXCLUSIVE MODE`},
		{"IN SHARE MODE", "'statement_timeout', '0'", `LOCK TABLE ONLY outbox_p0 IN ACCESS EXCLUSIVE MODE`},
	}
	short := watchedHandle(t, h, func(s string, sent bool) bool {
		switch {
		case sent || len(uses) == 0:
		case uses[0].after != "" && strings.Contains(s, uses[0].after):
			uses[0].after = ""
		case uses[0].after == "" && strings.Contains(s, uses[0].before):
			time.AfterFunc(use, h.open(t, uses[0].lock))
			uses = uses[1:]
		}
		return true
	})
	require.Subset(t, did(short.roll(t)), []string{"made outbox_p1", "emptied outbox_p0"})
	require.Empty(t, uses)
}

// TestRollKeepsThePromiseOfAnother: a roll that has nothing to make ends while another one, which began later, is about
// to attach a leaf under its check.
func TestRollKeepsThePromiseOfAnother(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 100)
	h.writeRows(t, 300, "")
	h.roll(t) // makes leaves of 100 ids up to 700
	validated, about, ended := 0, make(chan struct{}), make(chan struct{})
	isAbout := sync.OnceFunc(func() { close(about) })
	other := watchedHandle(t, h, func(s string, sent bool) bool {
		if sent && strings.Contains(s, "VALIDATE CONSTRAINT") {
			validated++
		}
		if !sent && validated == 1 && strings.Contains(s, "SHARE UPDATE EXCLUSIVE") {
			isAbout()
			<-ended
			validated++ // once
		}
		return true
	})
	var made []string
	var working sync.WaitGroup
	looked := 0
	r := watchedHandle(t, h, func(s string, sent bool) bool {
		if !sent && strings.Contains(s, "'outbox_default_bound'") {
			if looked++; looked == 2 { // whether a check is left
				working.Go(func() {
					defer isAbout()
					r, err := other.tryRoll(t, func(c *admin.RollConfig) { c.PartitionSize = 1000 })
					assert.NoError(t, err)
					made = did(r)
				})
				<-about
			}
		}
		return true
	}).roll(t, func(c *admin.RollConfig) { c.PartitionSize = 10 })
	close(ended)
	working.Wait()
	require.Empty(t, did(r))
	require.Equal(t, 2, looked)
	require.Equal(t, []string{"made outbox_p4", "made outbox_p5", "made outbox_p6", "made outbox_p7"}, made)
	require.Equal(t, 1+4, validated, "one for each leaf")
	require.Zero(t, h.count(t, `SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_default_bound'`))
}

// TestRollTakesThePromiseOfADeadOneAway: what a roll that was killed left is gone after the next, also if that has no
// leaf to make.
func TestRollTakesThePromiseOfADeadOneAway(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 100, 200, 300, 400, 500)
	require.NoError(t, schemaPromise(t, h))
	require.Empty(t, did(h.roll(t)))
	require.Zero(t, h.count(t, `SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_default_bound'`))
}
