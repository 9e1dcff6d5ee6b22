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
