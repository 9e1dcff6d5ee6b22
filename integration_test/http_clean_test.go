package integration_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/idempotency"
	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/observe"
)

// agedKeys makes requests that have expired, and as many that have not.
func agedKeys(t testing.TB, h handle, each int) {
	h.exec(t, `insert into outbox_idempotency (tenant, method, route, key, fingerprint, expires_at, status)
		select '', 'POST', '/', kind || n, '', at, 200 from generate_series(1, $1) n,
		     (values ('old', now() - interval '1 minute'), ('new', now() + interval '1 hour')) as k(kind, at)`, each)
}

func keyKinds(t testing.TB, h handle) []string {
	return column[string](t, h, "select distinct rtrim(key, '0123456789') from outbox_idempotency order by 1")
}

func TestCleaningKeys(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		agedKeys(t, h, clean.Batch+10) // in several statements
		db := (*core.DB)(h.db)
		n, err := clean.Keys(t.Context(), db, time.Now().Add(-time.Hour).Format(time.RFC3339), patience)
		require.NoError(t, err)
		require.Zero(t, n)
		n, err = clean.Keys(t.Context(), db, "", patience)
		require.NoError(t, err)
		assert.EqualValues(t, clean.Batch+10, n)
		assert.Equal(t, []string{"new"}, keyKinds(t, h))
	})
}

func TestForwarderCleansKeys(t *testing.T) {
	h := onPgx(t)
	cleaned := cleanings{ends: make(chan observe.CleanEnd, 100)}
	h = h.seenBy(t, cleaned)
	agedKeys(t, h, 7)
	cfg := quickConfig()
	cfg.CleanInterval = 20 * time.Millisecond
	startForwarder(t, h, cfg)
	end := within(t, "they are deleted", cleaned.ends)
	assert.Equal(t, "outbox_idempotency", end.Table)
	assert.EqualValues(t, 7, end.Rows)
	assert.NoError(t, end.Err)
	assert.Equal(t, []string{"new"}, keyKinds(t, h))
}

// TestAdminCleansKeys in a job where no forwarder does, and writes it into the audit log.
func TestAdminCleansKeys(t *testing.T) {
	h := onPgx(t)
	agedKeys(t, h, 7)
	a := newAdmin(t, h)
	dry, err := a.Clean(t.Context(), admin.CleanConfig{Idempotency: true, DryRun: true})
	require.NoError(t, err)
	assert.Equal(t, admin.Count{N: 7}, dry.Idempotency)
	assert.Equal(t, 14, keys(t, h))
	r, err := a.Clean(t.Context(), admin.CleanConfig{Idempotency: true, At: dry.At, Reason: "room"})
	require.NoError(t, err)
	assert.Equal(t, dry, r)
	assert.Equal(t, []string{"new"}, keyKinds(t, h))
	entries, _, err := a.Audit(t.Context(), admin.Page{})
	require.NoError(t, err)
	require.Len(t, entries, 1)
	assert.Equal(t, "clean idempotency room", entries[0].Action+" "+entries[0].Filter.In.String()+" "+entries[0].Reason)
	assert.EqualValues(t, 7, entries[0].Result.Touched)
	_, err = a.List(t.Context(), admin.Filter{In: entries[0].Filter.In}, admin.Page{})
	require.Error(t, err, "they are no messages")
	s, err := a.Stats(t.Context(), admin.StatsConfig{Exact: true})
	require.NoError(t, err)
	assert.Empty(t, s.Topics)
}

// TestHTTPRoles: a writer carries requests out and gives answers again, and only it reads them.
func TestHTTPRoles(t *testing.T) {
	t.Parallel()
	owner, as := newRoles(t)
	writer := as("writer")
	once := onceAround(t, writer, idempotency.Config{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(201)
	}))
	first := askedOf(t, once, asking("k1", "one"))
	assert.Equal(t, 201, first.status)
	askedOf(t, once, asking("k1", "one")).same(t, first)
	denied(t, writer, "DELETE FROM outbox_idempotency")
	owner.exec(t, "update outbox_idempotency set expires_at = now() - interval '1 day'")
	for _, role := range []string{"reader", "admin"} {
		h := as(role)
		assert.Equal(t, []string{"k1"}, column[string](t, h, "select key from outbox_idempotency"))
		denied(t, h, "SELECT body FROM outbox_idempotency", "SELECT header FROM outbox_idempotency",
			"UPDATE outbox_idempotency SET status = 1")
	}
	for _, role := range []string{"forwarder", "cleaner"} {
		h := as(role)
		denied(t, h, "SELECT body FROM outbox_idempotency", "SELECT key FROM outbox_idempotency",
			"UPDATE outbox_idempotency SET body = ''",
			"INSERT INTO outbox_idempotency (tenant) VALUES ('')")
		n, err := clean.Keys(t.Context(), (*core.DB)(h.db), "", patience)
		require.NoError(t, err)
		if role == "forwarder" {
			assert.EqualValues(t, 1, n)
			agedKeys(t, owner, 1)
			owner.exec(t, "delete from outbox_idempotency where expires_at > now()")
			continue
		}
		assert.EqualValues(t, 1, n)
	}
	for _, role := range []string{"worker", "mover"} {
		denied(t, as(role), "SELECT key FROM outbox_idempotency")
	}
}
