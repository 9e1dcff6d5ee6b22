package integration_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/idempotency"
)

func TestHTTPLimits(t *testing.T) {
	h := onPgx(t)
	o := newOrdering(t, h)
	once := onceAround(t, h, idempotency.Config{MaxBody: 10}, o)
	for _, key := range []string{"k1", ""} {
		got := askedOf(t, once, asking(key, strings.Repeat("x", 11)))
		assert.Equal(t, 413, got.status)
		chunked := asking(key, "")
		chunked.Body, chunked.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 11))), -1
		assert.Equal(t, 413, askedOf(t, once, chunked).status)
	}
	long := asking("k1", "one")
	long.URL.Path = "/" + strings.Repeat("x", 1024)
	assert.Equal(t, 414, askedOf(t, once, long).status)
	wide := asking("k1", "one")
	wide.Header.Set(headerTenant, strings.Repeat("x", 256))
	assert.Equal(t, 500, askedOf(t, once, wide).status)
	o.done(0)
	assert.Equal(t, 201, askedOf(t, once, asking("k1", strings.Repeat("x", 10))).status)

	// Responses are checked before COMMIT, so nothing is committed whose response cannot be replayed.
	for name, answer := range map[string]func(w http.ResponseWriter){
		"body": func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, 2000)) },
		"in pieces": func(w http.ResponseWriter) {
			for range 20 {
				_, _ = w.Write(make([]byte, 100))
			}
		},
		"header": func(w http.ResponseWriter) { w.Header().Set("X", strings.Repeat("x", 2000)) },
	} {
		once := onceAround(t, h, idempotency.Config{MaxResponse: 1000},
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, err := o.order(r)
				require.NoError(t, err)
				answer(w)
			}))
		got := askedOf(t, once, asking("k2", "two"))
		assert.Equal(t, 500, got.status, name)
		assert.Less(t, len(got.body), 500, name)
	}
	o.done(1)
	assert.Equal(t, 1, keys(t, h))
}

// TestHTTPStreams are refused: bytes sent before COMMIT could not be taken back.
func TestHTTPStreams(t *testing.T) {
	h := onPgx(t)
	o := newOrdering(t, h)
	recorder := httptest.NewRecorder()
	for name, stream := range map[string]func(w http.ResponseWriter) error{
		"flush":  func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() },
		"hijack": func(w http.ResponseWriter) error { _, _, err := http.NewResponseController(w).Hijack(); return err },
		"switch": func(w http.ResponseWriter) error {
			w.WriteHeader(http.StatusSwitchingProtocols)
			_, err := w.Write([]byte("x"))
			return err
		},
	} {
		once := onceAround(t, h, idempotency.Config{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, flushes := w.(http.Flusher)
			assert.False(t, flushes, "so that a handler can detect it")
			_, err := o.order(r)
			require.NoError(t, err)
			err = stream(w)
			assert.ErrorIs(t, err, errors.ErrUnsupported, name)
			assert.ErrorContains(t, err, "committed", name)
			assert.Empty(t, recorder.Body.String())
			http.Error(w, "no streams", http.StatusNotImplemented)
		}))
		recorder = httptest.NewRecorder()
		once.ServeHTTP(recorder, asking(name, "one"))
		assert.GreaterOrEqual(t, recorder.Code, 500, name)
		assert.False(t, recorder.Flushed)
	}
	o.done(0)
	assert.Zero(t, keys(t, h))
}

// TestHTTPStatusWithoutBody is replayed unchanged.
func TestHTTPStatusWithoutBody(t *testing.T) {
	h := onPgx(t)
	first, second := served(t, h, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		_, err := w.Write([]byte("x"))
		assert.ErrorIs(t, err, http.ErrBodyNotAllowed)
	})
	silent := onceAround(t, h, idempotency.Config{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, got := range []*http.Response{first, second} {
		assert.Equal(t, 204, got.StatusCode)
		assert.Empty(t, got.Header.Get("Content-Length"))
		assert.Equal(t, 200, askedOf(t, silent, asking("k2", "")).status)
	}
	assert.Equal(t, 2, keys(t, h))
}

// TestHTTPBodyReadBefore: the fingerprint would be meaningless, so the request is refused.
func TestHTTPBodyReadBefore(t *testing.T) {
	h := onPgx(t)
	log := newLogCapture(t)
	once := onceLogging(t, h, idempotency.Config{}, log, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("called")
	}))
	form := func(length int64) *http.Request {
		r := asking("k1", "a=1")
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.ContentLength = length
		return r
	}
	for _, length := range []int64{3, -1} {
		r := form(length)
		assert.NoError(t, r.ParseForm())
		assert.Equal(t, 500, askedOf(t, once, r).status)
	}
	assert.Equal(t, 2, log.count("the body was read before"))
}

// TestHTTPFormFiles are deleted with the attempt that parsed them.
func TestHTTPFormFiles(t *testing.T) {
	h := newPgxHandle(t, newMigratedDatabase(t))
	t.Setenv("TMPDIR", t.TempDir())
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", "file")
	require.NoError(t, err)
	_, err = part.Write(make([]byte, 100_000))
	require.NoError(t, err)
	require.NoError(t, form.Close())
	once := onceAround(t, h, idempotency.Config{}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		assert.NoError(t, r.ParseMultipartForm(0))
		files, err := os.ReadDir(os.TempDir())
		assert.NoError(t, err)
		assert.Len(t, files, 1)
	}))
	r := asking("k1", body.String())
	r.Header.Set("Content-Type", form.FormDataContentType())
	assert.Equal(t, 200, askedOf(t, once, r).status)
	files, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	assert.Empty(t, files)
}

// TestHTTPTimeout: a handler that exceeds it is rolled back.
func TestHTTPTimeout(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		o := newOrdering(t, h)
		once := onceAround(t, h, idempotency.Config{Timeout: 300 * time.Millisecond},
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n, err := o.order(r)
				if n == 1 {
					<-r.Context().Done()
				}
				if err != nil { // a slow machine
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				w.WriteHeader(http.StatusCreated)
				fmt.Fprint(w, "order")
			}))
		got := askedOf(t, once, asking("k1", "one"))
		assert.Equal(t, 503, got.status)
		assert.NotContains(t, got.body, "order")
		eventually(t, func() bool { return askedOf(t, once, asking("k1", "one")).status == 201 }, "it is carried out in time")
		o.done(1)

		once = onceAround(t, h, idempotency.Config{Timeout: 300 * time.Millisecond},
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				eventually(t, func() bool {
					return h.count(t, "select count(*) from pg_stat_activity where datname = current_database() and "+
						"state like 'idle in transaction%'") == 0
				}, "the server or the driver ends the transaction")
				w.WriteHeader(http.StatusCreated)
			}))
		assert.Equal(t, 503, askedOf(t, once, asking("k2", "one")).status)
		assert.Equal(t, 1, keys(t, h))
	})
}

func TestHTTPConfig(t *testing.T) {
	h := onPgx(t)
	tenant := func(*http.Request) (string, error) { return "", nil }
	for field, cfg := range map[string]idempotency.Config{
		"Tenant":          {},
		"Methods":         {Tenant: tenant, Methods: []string{"post"}},
		"Retention":       {Tenant: tenant, Retention: 29 * time.Second},
		"MaxBody":         {Tenant: tenant, MaxBody: -1},
		"MaxResponse":     {Tenant: tenant, MaxResponse: -1},
		"Wait":            {Tenant: tenant, Wait: -2},
		"Timeout":         {Tenant: tenant, Timeout: -2},
		"MaxRetries":      {Tenant: tenant, MaxRetries: -2},
		"Backoff.Initial": {Tenant: tenant, Backoff: outbox.Backoff{Initial: -2}},
		"Isolation":       {Tenant: tenant, Isolation: 99},
	} {
		_, err := idempotency.New(h.db, cfg, nil)
		assert.ErrorContains(t, err, "Config."+field)
	}
	_, err := idempotency.New(nil, idempotency.Config{Tenant: tenant}, nil)
	assert.ErrorIs(t, err, outbox.ErrNoDB)

	// Without the middleware, an error of a HandlerFunc is written as a response.
	r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/", nil)
	got := askedOf(t, idempotency.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
		return fmt.Errorf("secret")
	}), r)
	assert.Equal(t, 500, got.status)
	assert.NotContains(t, got.body, "secret")
}

// heldHandler is a handler that waits for permission to continue.
type heldHandler struct {
	entered chan struct{} // a value for each call
	release chan int      // status to respond with: 0 = call the inner handler
	within  http.Handler
}

func heldUp(within http.Handler) *heldHandler {
	return &heldHandler{make(chan struct{}, 100), make(chan int, 100), within}
}

func (b *heldHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.entered <- struct{}{}
	if status := <-b.release; status != 0 {
		w.WriteHeader(status)
		return
	}
	b.within.ServeHTTP(w, r)
}

// TestHTTPTwins: one of two concurrent requests is carried out. The other one waits, in its process or in the database,
// and gets the same response. At isolation levels where it cannot see the first one's commit, its attempt is repeated.
func TestHTTPTwins(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		o := newOrdering(t, h)
		for i, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelRepeatableRead, sql.LevelSerializable} {
			b, key := heldUp(o), fmt.Sprint("k", i)
			cfg := idempotency.Config{Wait: patience, Isolation: level}
			here, elsewhere := onceAround(t, h, cfg, b), onceAround(t, h, cfg, b)
			first := asks(t, here, asking(key, "one"))
			within(t, "the handler is called", b.entered)
			beside, there := asks(t, here, asking(key, "one")), asks(t, elsewhere, asking(key, "one"))
			other := asks(t, elsewhere, asking(key, "two"))
			eventually(t, func() bool { return waiters(t, h) == 1 }, "one waits for the transaction, the others in memory")
			b.release <- 0
			got := within(t, "the response", first)
			assert.Equal(t, 201, got.status)
			within(t, "the one next to it", beside).same(t, got)
			within(t, "the one elsewhere", there).same(t, got)
			assert.Equal(t, 422, within(t, "another body", other).status)
			askedOf(t, here, asking(key, "one")).same(t, got)
			o.done(i + 1)
		}
	})
}

// TestHTTPTwinOfAFailure is carried out itself.
func TestHTTPTwinOfAFailure(t *testing.T) {
	h := onPgx(t)
	o := newOrdering(t, h)
	b := heldUp(o)
	cfg := idempotency.Config{Wait: patience}
	here, elsewhere := onceAround(t, h, cfg, b), onceAround(t, h, cfg, b)
	first := asks(t, here, asking("k1", "one"))
	within(t, "the handler is called", b.entered)
	there := asks(t, elsewhere, asking("k1", "one"))
	eventually(t, func() bool { return waiters(t, h) == 1 }, "the other one waits")
	b.release <- 500
	b.release <- 0
	assert.Equal(t, 500, within(t, "the first", first).status)
	got := within(t, "the second", there)
	assert.Equal(t, 201, got.status)
	assert.False(t, got.replayed())
	o.done(1)
}

// TestHTTPConflict: a request that has waited long enough gets a Retry-After and does not affect the handler.
func TestHTTPConflict(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		o := newOrdering(t, h)
		b := heldUp(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.NoError(t, h.execTx(r.Context(), `do $$ begin assert current_setting('lock_timeout') = '0'; end $$`),
				"its own statements wait as before")
			o.ServeHTTP(w, r)
		}))
		patient := onceAround(t, h, idempotency.Config{}, b)
		first := asks(t, patient, asking("k1", "one"))
		within(t, "the handler is called", b.entered)
		for _, wait := range []time.Duration{-1, 20 * time.Millisecond} {
			own := heldUp(o)
			impatient := onceAround(t, h, idempotency.Config{Wait: wait}, own)
			for range 2 {
				got := askedOf(t, impatient, asking("k1", "one"))
				assert.Equal(t, 409, got.status)
				assert.Equal(t, "1", got.header.Get("Retry-After"))
				assert.Contains(t, got.body, "in progress")
			}
			key := fmt.Sprint("k", wait.Milliseconds())
			twin := asks(t, impatient, asking(key, "two"))
			within(t, "the handler is called", own.entered)
			assert.Equal(t, 409, askedOf(t, impatient, asking(key, "two")).status, "in the same process")
			own.release <- 0
			assert.Equal(t, 201, within(t, "the first one", twin).status)
		}
		b.release <- 0
		got := within(t, "the first", first)
		assert.Equal(t, 201, got.status)
		askedOf(t, patient, asking("k1", "one")).same(t, got)
		o.done(3)
	})
}

// TestHTTPWaitersKeepNoConnections: a client that repeats a slow request many times uses one connection for the request
// and at most one more in each other process.
func TestHTTPWaitersKeepNoConnections(t *testing.T) {
	t.Parallel()
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 3 })
	o := newOrdering(t, h)
	b := heldUp(o)
	cfg := idempotency.Config{Wait: patience}
	here, elsewhere := onceAround(t, h, cfg, b), onceAround(t, h, cfg, b)
	all := []<-chan answered{asks(t, here, asking("k1", "one"))}
	within(t, "the handler is called", b.entered)
	for range 20 {
		all = append(all, asks(t, here, asking("k1", "one")), asks(t, elsewhere, asking("k1", "one")))
	}
	eventually(t, func() bool { return waiters(t, h) == 1 }, "one waits")
	free := onceAround(t, h, cfg, o)
	const others = 5 // while these are served, all repetitions have arrived
	for i := range others {
		assert.Equal(t, 201, askedOf(t, free, asking("other"+itoa(i), "two")).status, "no connection is left")
	}
	b.release <- 0
	b.release <- 0
	for _, one := range all {
		assert.Equal(t, 201, within(t, "a response", one).status)
	}
	o.done(1 + others)
}
