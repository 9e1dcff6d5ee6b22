package integration_test

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/idempotency"
	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/meter"
)

func TestHTTPOnce(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		o := newOrdering(t, h)
		once := onceAround(t, h, idempotency.Config{}, o)
		first := askedOf(t, once, asking("k1", "one"))
		assert.Equal(t, 201, first.status)
		assert.Equal(t, "order 1\x00\xff", first.body)
		assert.Equal(t, []string{"one", "two \xff"}, first.header["X-Many"])
		assert.Equal(t, "9", first.header.Get("Content-Length"))
		assert.False(t, first.replayed())
		o.done(1)
		for range 3 {
			askedOf(t, once, asking("k1", "one")).same(t, first)
		}
		askedOf(t, once, asking(`"k1"`, "one")).same(t, first) // as in RFC 8941
		o.done(1)
		assert.EqualValues(t, 1, o.calls.Load())

		assert.Equal(t, 201, askedOf(t, once, asking("k2", "one")).status)
		o.done(2)
		for range 2 { // without a key: in a transaction each time
			assert.False(t, askedOf(t, once, asking("", "one")).replayed())
		}
		o.done(4)
		assert.Equal(t, 2, keys(t, h))
	})
}

// TestHTTPIdentity: a request is identified by tenant, method, route and key.
func TestHTTPIdentity(t *testing.T) {
	h := onPgx(t)
	o := newOrdering(t, h)
	once := onceAround(t, h, idempotency.Config{}, o)
	others := []func(r *http.Request){
		func(*http.Request) {},
		func(r *http.Request) { r.Header.Set(headerTenant, "bob") },
		func(r *http.Request) { r.Method = http.MethodPatch },
		func(r *http.Request) { r.URL.Path = "/orders/7" },
		func(r *http.Request) { r.Header.Set(idempotency.HeaderKey, "k2") },
	}
	bodies := map[string]bool{}
	for range 2 {
		for _, change := range others {
			r := asking("k1", "one")
			change(r)
			bodies[askedOf(t, once, r).body] = true
		}
	}
	assert.Len(t, bodies, len(others))
	o.done(len(others))

	get := asking("k1", "one")
	get.Method = http.MethodGet
	passed := onceAround(t, h, idempotency.Config{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := outbox.PgxTx(r.Context())
		assert.ErrorIs(t, err, outbox.ErrNoTx)
		_, flushes := w.(http.Flusher)
		assert.True(t, flushes, "untouched")
	}))
	assert.Equal(t, 200, askedOf(t, passed, get).status)
	o.done(len(others))
}

// TestHTTPOtherRequest: a key that was used for another request is refused before any response is replayed.
func TestHTTPOtherRequest(t *testing.T) {
	h := onPgx(t)
	o := newOrdering(t, h)
	once := onceAround(t, h, idempotency.Config{
		Route: func(r *http.Request) string { return "order" },
	}, o)
	first := askedOf(t, once, asking("k1", "one"))
	for name, change := range map[string]func(r *http.Request){
		"query":    func(r *http.Request) { r.URL.RawQuery = "fast=2" },
		"path":     func(r *http.Request) { r.URL.Path = "/orders/7" },
		"type":     func(r *http.Request) { r.Header.Set("Content-Type", "text/html") },
		"encoding": func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") },
		"body":     func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("two")) },
		"no body":  func(r *http.Request) { r.Body, r.ContentLength = http.NoBody, 0 },
	} {
		r := asking("k1", "one")
		change(r)
		got := askedOf(t, once, r)
		assert.Equal(t, 422, got.status, name)
		assert.NotContains(t, got.body, "order 1", name)
		assert.Equal(t, "application/problem+json", got.header.Get("Content-Type"))
		assert.Empty(t, got.header.Get("Location"))
	}
	askedOf(t, once, asking("k1", "one")).same(t, first)
	o.done(1)
}

func TestHTTPKeys(t *testing.T) {
	h := onPgx(t)
	o := newOrdering(t, h)
	log := newLogCapture(t)
	once := onceLogging(t, h, idempotency.Config{Required: true}, log, o)
	for _, bad := range []string{
		"", " ", `"`, `""`, `"a`, `a"`, `"a"b"`, `"a\b"`, `"a";p=1`, `"a", "b"`, "a, b", "a b", "a;b", `a\b`, "ключ",
		"\"kl\u00fc\"", "a\x00b", "a\x7fb", "a\tb",
		strings.Repeat("x", 256), `"` + strings.Repeat("x", 256) + `"`,
	} {
		r := asking("", "one")
		r.Header[idempotency.HeaderKey] = []string{bad}
		got := askedOf(t, once, r)
		assert.Equal(t, 400, got.status, "%q", bad)
		assert.Contains(t, got.body, "Idempotency-Key", "%q", bad)
	}
	missing := askedOf(t, once, asking("", "one"))
	assert.Equal(t, 400, missing.status)
	assert.Contains(t, missing.body, "Idempotency-Key is missing")
	twice := asking("a", "one")
	twice.Header.Add(idempotency.HeaderKey, "a")
	assert.Equal(t, 400, askedOf(t, once, twice).status)
	o.done(0)
	assert.Zero(t, keys(t, h))
	for _, line := range *log.lines {
		assert.NotContains(t, line, "ключ")
	}

	for i, good := range []string{"x", "order:7/a=b@c", strings.Repeat("x", 255), `"a \"quoted\" \\ one"`, ` padded `} {
		assert.Equal(t, 201, askedOf(t, once, asking(good, "one")).status, good)
		assert.Equal(t, i+1, keys(t, h))
	}
	assert.Contains(t, column[string](t, h, "select key from outbox_idempotency"), `a "quoted" \ one`)
}

// TestHTTPOrder: authorization outside the middleware runs before each replay, and compression outside it compresses
// each.
func TestHTTPOrder(t *testing.T) {
	h := onPgx(t)
	o := newOrdering(t, h)
	once := onceAround(t, h, idempotency.Config{}, o)
	compressing := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "gzip" {
			once.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		once.ServeHTTP(gzipped{w, z}, r)
		assert.NoError(t, z.Close())
	})
	allowed := true
	stack := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !allowed {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		compressing.ServeHTTP(w, r)
	})
	zipped := asking("k1", "one")
	zipped.Header.Set("Accept-Encoding", "gzip")
	first := askedOf(t, stack, zipped)
	assert.Equal(t, "gzip", first.header.Get("Content-Encoding"))
	z, err := gzip.NewReader(strings.NewReader(first.body))
	require.NoError(t, err)
	plain, err := io.ReadAll(z)
	require.NoError(t, err)
	assert.Equal(t, "order 1\x00\xff", string(plain))

	again := askedOf(t, stack, asking("k1", "one"))
	assert.True(t, again.replayed())
	assert.Empty(t, again.header.Get("Content-Encoding"))
	assert.Equal(t, string(plain), again.body)
	allowed = false
	refused := askedOf(t, stack, asking("k1", "one"))
	assert.Equal(t, 403, refused.status)
	assert.NotContains(t, refused.body, "order")

	nobody := onceAround(t, h, idempotency.Config{Tenant: func(*http.Request) (string, error) {
		return "", errors.New("nobody")
	}}, o)
	assert.Equal(t, 401, askedOf(t, nobody, asking("k1", "one")).status)
	o.done(1)
}

type gzipped struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (g gzipped) WriteHeader(status int) {
	g.Header().Del("Content-Length")
	g.ResponseWriter.WriteHeader(status)
}
func (g gzipped) Write(p []byte) (int, error) { return g.z.Write(p) }

// TestHTTPHeaders: headers that are only valid for the moment, and secrets, reach the client once and are not stored;
// headers of outer middlewares are left to them.
func TestHTTPHeaders(t *testing.T) {
	h := onPgx(t)
	drop := []string{
		"Set-Cookie", "Date", "Connection", "Keep-Alive", "X-Hop", "Transfer-Encoding", "Trailer", "Upgrade",
		"Access-Control-Allow-Origin",
		"Access-Control-Expose-Headers", "Traceparent", "Tracestate", "Baggage", "X-Request-Id", "X-B3-Traceid",
		"Server-Timing", "X-Own",
		"X-Auth-Token", "X-Access-Token", "Authorization", "X-Api-Key", "X-Csrf-Token", // secrets
	}
	once := onceAround(t, h, idempotency.Config{DropHeaders: []string{"x-own"}},
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for _, name := range drop {
				w.Header().Set(name, "once")
			}
			w.Header().Set("Connection", "X-Hop, close")
			w.Header().Set("Etag", `"7"`)
			w.Header().Del("X-Taken")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusAccepted)
			w.Header().Set("X-Late", "1")
			_, err := io.WriteString(w, "<html>")
			assert.NoError(t, err)
		}))
	n := 0
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n++
		w.Header().Set("X-Attempt", fmt.Sprint(n))
		w.Header().Set("X-Taken", "1")
		once.ServeHTTP(w, r)
	})
	first := askedOf(t, outer, asking("k", ""))
	again := askedOf(t, outer, asking("k", ""))
	for _, name := range drop {
		assert.Equal(t, name == "Trailer", first.header[name] == nil, name) // trailers are not sent
		assert.Empty(t, again.header[name], name)
	}
	for _, a := range []answered{first, again} {
		assert.Equal(t, 202, a.status)
		assert.Equal(t, "<html>", a.body)
		assert.Equal(t, `"7"`, a.header.Get("Etag"))
		assert.Empty(t, a.header.Get("X-Late"))
	}
	assert.Equal(t, "1", first.header.Get("X-Attempt"))
	assert.Equal(t, "2", again.header.Get("X-Attempt"))
	assert.Empty(t, first.header.Get("X-Taken"))
}

// TestHTTPExpiry: key and response expire together, even if they have not been deleted.
func TestHTTPExpiry(t *testing.T) {
	h := onPgx(t)
	o := newOrdering(t, h)
	once := onceAround(t, h, idempotency.Config{Retention: time.Hour}, o)
	first := askedOf(t, once, asking("k1", "one"))
	h.exec(t, "update outbox_idempotency set expires_at = expires_at - interval '59 minutes'")
	askedOf(t, once, asking("k1", "one")).same(t, first)
	h.exec(t, "update outbox_idempotency set expires_at = expires_at - interval '2 minutes'")
	second := askedOf(t, once, asking("k1", "another")) // the key is free, even for another body
	assert.False(t, second.replayed())
	assert.Equal(t, "order 2\x00\xff", second.body)
	askedOf(t, once, asking("k1", "another")).same(t, second)
	o.done(2)
	assert.Equal(t, 1, keys(t, h))
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox_idempotency where expires_at - created_at between "+
		"interval '59 minutes' and interval '61 minutes'"))
}

// TestHTTPRepetitionWaitsForTheStandby that the first request's COMMIT waits for: a visible row may still be lost with
// this server, so its response is not replayed yet.
func TestHTTPRepetitionWaitsForTheStandby(t *testing.T) {
	extended(t)
	t.Parallel()
	_, h := ownMigratedServer(t)
	o := newOrdering(t, h)
	once := onceAround(t, h, idempotency.Config{Timeout: time.Second}, o)
	setStandby(t, h, "alter system set synchronous_standby_names = 'nobody'", "nobody")
	h.pool.Reset()
	assert.Equal(t, 503, askedOf(t, once, asking("k1", "one")).status)
	eventually(t, func() bool { return keys(t, h) == 1 }, "visible, and on no standby")
	assert.Equal(t, 503, askedOf(t, once, asking("k1", "one")).status)
	setStandby(t, h, "alter system reset synchronous_standby_names", "")
	h.pool.Reset()
	again := askedOf(t, once, asking("k1", "one"))
	assert.Equal(t, 201, again.status)
	assert.True(t, again.replayed())
	o.done(1)
}

// agedKeys stores as many expired requests as valid ones.
func agedKeys(t testing.TB, h handle, each int) {
	h.exec(t, `insert into outbox_idempotency (tenant, method, route, key, fingerprint, expires_at, status)
		select '', 'POST', '/', kind || n, '', at, 200 from generate_series(1, $1) n,
		     (values ('old', now() - interval '1 minute'), ('new', now() + interval '1 hour')) as k(kind, at)`, each)
}

func keyKinds(t testing.TB, h handle) []string {
	return column[string](t, h, "select distinct rtrim(key, '0123456789') from outbox_idempotency order by 1")
}

func TestCleaningKeys(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		agedKeys(t, h, clean.Batch+10) // more than one statement deletes
		db := (*core.DB)(h.db)
		n, err := clean.Keys(t.Context(), db, time.Now().Add(-time.Hour).Format(time.RFC3339), patience, nil)
		require.NoError(t, err)
		require.Zero(t, n)
		n, err = clean.Keys(t.Context(), db, "", patience, nil)
		require.NoError(t, err)
		assert.EqualValues(t, clean.Batch+10, n)
		assert.Equal(t, []string{"new"}, keyKinds(t, h))
	})
}

func TestForwarderCleansKeys(t *testing.T) {
	h := onPgx(t)
	cleaned := cleanings{ends: make(chan meter.CleanEnd, 100)}
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

// TestAdminCleansKeys in a job, where no forwarder does, and records it in the audit log.
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
	require.Error(t, err, "they are not messages")
	s, err := a.Stats(t.Context(), admin.StatsConfig{Exact: true})
	require.NoError(t, err)
	assert.Empty(t, s.Topics)
}

// TestHTTPRoles: a writer carries out requests and replays responses, and no other role reads them.
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
		n, err := clean.Keys(t.Context(), (*core.DB)(h.db), "", patience, nil)
		require.NoError(t, err)
		assert.EqualValues(t, 1, n)
		agedKeys(t, owner, 1)
		owner.exec(t, "delete from outbox_idempotency where expires_at > now()")
	}
	for _, role := range []string{"worker", "mover"} {
		denied(t, as(role), "SELECT key FROM outbox_idempotency")
	}
}
