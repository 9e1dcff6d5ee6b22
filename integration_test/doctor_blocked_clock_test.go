package integration_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/facts"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestBlockedByOneClock: for how long a partition is blocked does not depend on how the clock of the forwarder's host
// is set, nor on that of the one who asks.
func TestBlockedByOneClock(t *testing.T) {
	h := onPgx(t)
	id := uuid.NewString()
	names := sqltext.Tables{}
	says := func(theirs time.Time) (string, float64) {
		b, err := json.Marshal(facts.Forwarder{Blocked: []facts.Partition{{
			Group: "g", Topic: "orders", Since: theirs.Add(-2 * time.Minute), Failing: theirs.Add(-3 * time.Minute), Keys: 1,
		}}})
		require.NoError(t, err)
		return string(b), float64(theirs.UnixMicro()) / 1e6
	}
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		what, theirs := says(time.Now().Add(ahead))
		h.exec(t, names.Render(sqltext.AnnounceForwarder), id, "default", []string{}, "f", 3600.0, what, theirs)
		for range 2 {
			f := findings(t, h)["partition_blocked"]
			assert.Equal(t, admin.Warning, f.Severity)
			assert.Regexp(t, `paused for 2m0[0-9]s .* the oldest for 3m0[0-9]s`, f.Evidence, "%s ahead", ahead)
			h.exec(t, names.Render(sqltext.TellForwarder), id, what, theirs)
		}
	}
}

// TestHungHandlersAreFound: a partition that no message blocks, and whose handlers do not return, is critical, and its
// cure is another one.
func TestHungHandlersAreFound(t *testing.T) {
	h := onPgx(t)
	now := time.Now()
	says, err := json.Marshal(facts.Forwarder{Blocked: []facts.Partition{{
		Group: "g", Topic: "orders", Partition: 3, Since: now.Add(-6 * time.Minute), Failing: now, Lag: 7, Hung: true,
	}}})
	require.NoError(t, err)
	h.exec(t, sqltext.Tables{}.Render(sqltext.AnnounceForwarder), uuid.NewString(), "default", []string{}, "f", 3600.0,
		string(says), float64(now.UnixMicro())/1e6)
	f := findings(t, h)["partition_blocked"]
	assert.Equal(t, admin.Critical, f.Severity)
	assert.Regexp(t, `partition 3 of topic "orders".* paused for 6m0[0-9]s, and no handler has returned .*lag 7 messages`,
		f.Evidence)
	assert.Contains(t, f.Cure, "goroutine dump")
	assert.Equal(t, []string{"PartitionBlocked"}, f.Alerts)
}
