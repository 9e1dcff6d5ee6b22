package integration_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// TestNightNotifyQueue: a session listens, and reads nothing, as it stays in a transaction.
func TestNightNotifyQueue(t *testing.T) {
	t.Parallel()
	var settings []string
	small := newPgxHandle(t, postgresServer(t).URL()).count(t, "SELECT current_setting('server_version_num')::int") >= 170000
	if small {
		settings = []string{"max_notify_queue_pages=64"}
	}
	_, h := ownMigratedServer(t, settings...)
	if !small { // older ones have 8 GB of it, so here is one that is full while the session is there
		h.exec(t, "CREATE SCHEMA small")
		h.exec(t, `CREATE FUNCTION small.pg_notification_queue_usage() RETURNS float8 LANGUAGE sql AS
			$$ SELECT CASE WHEN EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'culprit') THEN 0.6 ELSE 0 END::float8 $$`)
		h = newPgxHandle(t, h.url+"&search_path=small,pg_catalog,public")
	}
	begin(t, h, "LISTEN news", "BEGIN", "SELECT 1")
	if small {
		for range 64 {
			h.exec(t, "SELECT pg_notify('news', repeat('x', 7000))")
		}
	}
	f := ails(t, h, "notify_queue")
	assert.Equal(t, admin.Critical, f.Severity)
	assert.Contains(t, f.Evidence, "once it is full, NOTIFY fails")
	assert.Contains(t, f.Evidence, `("culprit"), idle in transaction`)
	cure(t, h, f)
	cured(t, h, "notify_queue")
}

// TestNightSwallowedNotifications: what is in between lets LISTEN pass, and nothing of what it brings.
func TestNightSwallowedNotifications(t *testing.T) {
	t.Parallel()
	at := newMigratedDatabase(t)
	swallows := startProxy(t, at, passOn, func(client, server net.Conn, _ <-chan struct{}) {
		for {
			whole, err := serverMessage(server)
			if err != nil {
				return
			}
			if whole[0] == 'A' {
				continue
			}
			if _, err := client.Write(whole); err != nil {
				return
			}
		}
	})
	a, err := admin.New(newPgxHandle(t, swallows).db, admin.Config{QueryTimeout: 2 * time.Second}, nil)
	require.NoError(t, err)
	eventually(t, func() bool { // on a busy machine something else may take two seconds
		found, err := a.Doctor(t.Context())
		require.NoError(t, err)
		for _, f := range found {
			if f.Check == "listen" {
				return f.Severity == admin.Warning && strings.Contains(f.Evidence, "a notification did not arrive") && strings.Contains(f.Cure, "what is between")
			}
		}
		return false
	}, "doctor finds listen")
	cured(t, newPgxHandle(t, at), "listen")
}
