package integration_test

import (
	"context"
	"net"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// TestNightNotifyQueue: a session listens, and reads nothing, as it stays in a transaction, until no more notification
// fits in. Messages leave all the same.
func TestNightNotifyQueue(t *testing.T) {
	t.Parallel()
	if newPgxHandle(t, postgresServer(t).URL()).count(t, "SELECT current_setting('server_version_num')::int") < 170000 {
		return // those have 8 GB of it; TestOldestAndNewestPostgres runs this where it can be made small
	}
	_, h := ownMigratedServer(t, "max_notify_queue_pages=64")
	w := startForwarder(t, h, classifyingConfig())
	begin(t, h, "LISTEN news", "BEGIN", "SELECT 1")
	var full error
	for range 1000 {
		if _, full = h.pool.Exec(t.Context(), "SELECT pg_notify('news', repeat('x', 7000))"); full != nil {
			break
		}
	}
	require.ErrorContains(t, full, "too many notifications in the NOTIFY queue")
	h.publish(t, "orders", "K", "while it is full")
	w.arrives(t, "while it is full")
	assert.Contains(t, findings(t, h)["listen"].Evidence, "too many notifications in the NOTIFY queue")
	f := ails(t, h, "notify_queue")
	assert.Equal(t, admin.Critical, f.Severity)
	assert.Regexp(t, `(9\d|100) % full; once it is full, NOTIFY fails`, f.Evidence)
	assert.Contains(t, f.Evidence, `("culprit"), idle in transaction`)
	cure(t, h, f)
	cured(t, h, "notify_queue")
	cured(t, h, "listen")
}

// TestNightSwallowedNotifications: what is in between lets LISTEN pass, and nothing of what it brings. Doctor waits for
// it as long as it says, though its statements have no bound.
func TestNightSwallowedNotifications(t *testing.T) {
	t.Parallel()
	at := newMigratedDatabase(t)
	interrupted, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	swallows := startProxy(t, at, passOn, func(client, server net.Conn, _ <-chan struct{}) {
		for {
			whole, err := serverMessage(server)
			if err != nil {
				return
			}
			if whole[0] == 'A' {
				interrupt() // whoever waits for it: this is the middle of what doctor waits
				continue
			}
			if _, err := client.Write(whole); err != nil {
				return
			}
		}
	})
	a, err := admin.New(newPgxHandle(t, swallows).db, admin.Config{QueryTimeout: -1}, nil)
	require.NoError(t, err)
	_, err = a.Doctor(interrupted)
	require.ErrorIs(t, err, context.Canceled, "what was interrupted is no finding")

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	found, err := a.Doctor(ctx)
	require.NoError(t, err)
	i := slices.IndexFunc(found, func(f admin.Finding) bool { return f.Check == "listen" })
	require.GreaterOrEqual(t, i, 0, "doctor finds listen")
	assert.Equal(t, admin.Warning, found[i].Severity)
	assert.Contains(t, found[i].Evidence, "a notification did not arrive")
	assert.Contains(t, found[i].Cure, "what is between")
	cured(t, newPgxHandle(t, at), "listen")
}
