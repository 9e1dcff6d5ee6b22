//go:build unix

package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// TestNightKilledForwarder: its process is killed, its row stays, its lease runs out, and nobody else is there.
func TestNightKilledForwarder(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newCrashWorld(t, newPgxHandle(t, newMigratedDatabase(t)), 1)
	h, cfg := w.h, childConfig{Handle: "pgx", LeaseTTL: time.Second}
	victim := w.start(cfg)
	pending := func() int { return h.count(t, "SELECT count(*) FROM outbox WHERE published_at IS NULL") }
	require.NoError(t, w.placeOne("1", 0))
	require.NotZero(t, h.count(t, "SELECT count(*) FROM outbox"))
	eventually(t, func() bool { return pending() == 0 }, "it publishes")
	cured(t, h, "forwarders") // with so short a lease a busy machine may find it late for a moment

	victim.kill()
	require.NoError(t, w.placeOne("2", 0))
	h.exec(t, "UPDATE outbox SET created_at = now() - interval '11 minutes' WHERE published_at IS NULL")
	f := ails(t, h, "forwarders")
	assert.Equal(t, admin.Critical, f.Severity)
	assert.Contains(t, f.Evidence, `the lease of forwarder "worker-1-pgx" (scope default) expired`)
	assert.Contains(t, f.Cure, "run a forwarder.Forwarder")
	assert.NotContains(t, findings(t, h), "schema", "once is enough")

	other := w.start(cfg)
	eventually(t, func() bool { return pending() == 0 }, "the other one publishes")
	cured(t, h, "forwarders")
	f = ails(t, h, "forwarder_vanished")
	assert.Equal(t, admin.Info, f.Severity, "others have its lanes")
	cure(t, h, f)
	cured(t, h, "forwarder_vanished")
	other.shutDown()
}
