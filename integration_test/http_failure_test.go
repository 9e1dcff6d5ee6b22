package integration_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/idempotency"
)

// TestHTTPFailures leave nothing behind, and a repeated request is carried out.
func TestHTTPFailures(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		o := newOrdering(t, h)
		var fails http.HandlerFunc
		once := onceAround(t, h, idempotency.Config{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if fails != nil {
				_, err := o.order(r)
				require.NoError(t, err)
				fails(w, r)
				return
			}
			o.ServeHTTP(w, r)
		}))
		failing := func(err error) http.HandlerFunc {
			return idempotency.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error { return err }).ServeHTTP
		}
		tests := map[string]struct {
			fails  http.HandlerFunc
			status int
		}{
			"error": {failing(errHandler), 500},
			"error behind a 201": {idempotency.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
				w.WriteHeader(201)
				return errHandler
			}).ServeHTTP, 500},
			"rolled back, by an InTx within": {idempotency.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) error {
				return outbox.InTx(r.Context(), h.db, outbox.SetRollbackOnly)
			}).ServeHTTP, 500},
			"rolled back behind a 201": {idempotency.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
				w.WriteHeader(201)
				return fmt.Errorf("wrapped: %w", outbox.ErrRolledBack)
			}).ServeHTTP, 500},
			"error that may pass": {failing(fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: "57P01"})), 503},
			"error that stays":    {failing(&pgconn.PgError{Code: "23505"}), 500},
			"error with an answer": {idempotency.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
				w.WriteHeader(418)
				return errHandler
			}).ServeHTTP, 418},
			"a statement failed": {func(w http.ResponseWriter, r *http.Request) {
				_ = h.execTx(r.Context(), "select 1/0")
				w.WriteHeader(201)
			}, 500},
			"its connection is cut": {func(w http.ResponseWriter, r *http.Request) {
				_ = h.execTx(r.Context(), "select pg_terminate_backend(pg_backend_pid())")
				w.WriteHeader(201)
			}, 503},
		}
		for _, status := range []int{401, 403, 408, 409, 425, 429, 500, 502, 503} {
			tests[fmt.Sprint(status)] = struct {
				fails  http.HandlerFunc
				status int
			}{func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "its own text", status) }, status}
		}
		for name, test := range tests {
			if fails = test.fails; h.name == "pgbouncer" && strings.HasPrefix(name, "its connection") {
				continue // it closes the client's connection at an arbitrary time
			}
			got := askedOf(t, once, asking("k1", "one"))
			assert.Equal(t, test.status, got.status, name)
			if name == fmt.Sprint(test.status) {
				assert.Equal(t, "its own text\n", got.body)
			}
			o.done(0)
			assert.Zero(t, keys(t, h), name)
		}
		fails = func(http.ResponseWriter, *http.Request) { panic("boom") }
		assert.PanicsWithValue(t, "boom", func() { askedOf(t, once, asking("k1", "one")) })
		o.done(0)
		fails = nil
		assert.Equal(t, 201, askedOf(t, once, asking("k1", "one")).status)
		o.done(1)
	})
}

// TestHTTPRefusals of the handler: its writes are rolled back, and its response stays the same.
func TestHTTPRefusals(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		o := newOrdering(t, h)
		for _, test := range []struct {
			status   int
			rollback bool
		}{{400, false}, {404, false}, {422, false}, {200, true}} {
			once := onceAround(t, h, idempotency.Config{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n, err := o.order(r)
				require.NoError(t, err)
				if test.rollback {
					require.NoError(t, outbox.SetRollbackOnly(r.Context()))
				}
				w.Header().Set("X-N", fmt.Sprint(n))
				w.WriteHeader(test.status)
				fmt.Fprint(w, n)
			}))
			key := fmt.Sprint(test)
			key = strings.NewReplacer("{", "", "}", "", " ", "-").Replace(key)
			first := askedOf(t, once, asking(key, "one"))
			assert.Equal(t, test.status, first.status)
			askedOf(t, once, asking(key, "one")).same(t, first)
			assert.Equal(t, 422, askedOf(t, once, asking(key, "two")).status)
			assert.Equal(t, test.status, askedOf(t, once, asking("", "one")).status)
		}
		o.done(0)
		assert.Equal(t, 4, keys(t, h))
	})
}

// TestHTTPUnknownCommit: the outcome is unknown, so the client gets a 503, repeats the request and gets the outcome.
// Without a key a repeat could be carried out again, so the client gets a 500.
func TestHTTPUnknownCommit(t *testing.T) {
	parallel(t)
	database := newMigratedDatabase(t)
	direct := newPgxHandle(t, database)
	o := newOrdering(t, direct)
	proxy := newProxy(t, database)
	overEach(t, proxy.url, func(t *testing.T, h handle) {
		o.h, o.pub = h, newOutboxPublisher(t, h)
		o.calls.Store(0)
		cuts := proxy.cuts.Load()
		once := onceAround(t, h, idempotency.Config{}, o)
		direct.exec(t, "truncate effects, outbox, outbox_idempotency")
		require.Equal(t, 201, askedOf(t, once, asking("warm", "")).status)

		proxy.cutAtCommitted.Store(true)
		got := askedOf(t, once, asking("k1", "one"))
		assert.Equal(t, 503, got.status, h.name)
		assert.NotEmpty(t, got.header.Get("Retry-After"))
		assert.NotContains(t, got.body, "order")
		assert.Equal(t, 2, direct.count(t, "select count(*) from effects"), "it was committed")
		again := askedOf(t, once, asking("k1", "one"))
		assert.Equal(t, "order 2\x00\xff", again.body)
		assert.True(t, again.replayed())

		proxy.cutAtCommit()
		assert.Equal(t, 503, askedOf(t, once, asking("k2", "two")).status, h.name)
		again = askedOf(t, once, asking("k2", "two"))
		assert.Equal(t, "order 4\x00\xff", again.body, "it was not committed")
		assert.False(t, again.replayed())
		assert.Equal(t, 3, direct.count(t, "select count(*) from effects"))

		proxy.cutAtCommitted.Store(true)
		got = askedOf(t, once, asking("", "three"))
		assert.Equal(t, 500, got.status,
			"%s: proxies repeat a request after a 503, and no key shows what was done", h.name)
		assert.Empty(t, got.header.Get("Retry-After"))
		assert.Contains(t, got.body, "before you repeat it")
		assert.Equal(t, 4, direct.count(t, "select count(*) from effects"), "it was committed")
		assert.EqualValues(t, cuts+3, proxy.cuts.Load())
	})
}

// TestHTTPHostVanishes: PostgreSQL would keep the transaction of a host that has vanished until TCP gives up, for two
// hours by default, and all that time repeats of its request would get a 409.
func TestHTTPHostVanishes(t *testing.T) {
	h := onPgx(t)
	proxy := newProxy(t, h.url)
	o := newOrdering(t, h)
	vanishing := onceAround(t, newPgxHandle(t, proxy.url), idempotency.Config{Timeout: time.Second}, http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			proxy.freeze()
			w.WriteHeader(http.StatusCreated)
		}))
	assert.Equal(t, 503, askedOf(t, vanishing, asking("k1", "one")).status)
	defer proxy.thaw()
	elsewhere := onceAround(t, h, idempotency.Config{Wait: -1}, o)
	eventually(t, func() bool { return askedOf(t, elsewhere, asking("k1", "one")).status == 201 }, "the key is free")
	o.done(1)
}

// TestHTTPClientGoesAway: a request that has begun is finished, and a repeated one gets the response.
func TestHTTPClientGoesAway(t *testing.T) {
	h := onPgx(t)
	o := newOrdering(t, h)
	gone := make(chan struct{})
	b := heldUp(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.NoError(t, r.Context().Err())
		o.ServeHTTP(w, r)
	}))
	once := onceAround(t, h, idempotency.Config{}, b)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		context.AfterFunc(r.Context(), func() { gone <- struct{}{} })
		once.ServeHTTP(w, r)
	}))
	defer server.Close()
	post := func(ctx context.Context) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/orders", strings.NewReader("one"))
		require.NoError(t, err)
		r.Header.Set(idempotency.HeaderKey, "k1")
		return server.Client().Do(r)
	}
	ctx, leave := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { _, err := post(ctx); failed <- err }()
	within(t, "the handler is called", b.entered)
	leave()
	assert.ErrorIs(t, within(t, "the client has gone", failed), context.Canceled)
	within(t, "the server knows", gone)
	b.release <- 0
	got, err := post(t.Context())
	require.NoError(t, err)
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	assert.Equal(t, "order 1\x00\xff", string(body))
	within(t, "the second request has ended", gone)
	o.done(1)
}

// TestHTTPHandlerEndsItsTransaction: its writes may be committed, so the request is not carried out again, and no
// response can be given.
func TestHTTPHandlerEndsItsTransaction(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		o := newOrdering(t, h)
		require.Equal(t, 201, askedOf(t, onceAround(t, h, idempotency.Config{}, o), asking("k1", "expired")).status)
		h.exec(t, "update outbox_idempotency set expires_at = now() - interval '1 second'") // nobody gets its response
		calls := 0
		log := newLogCapture(t)
		once := onceLogging(t, h, idempotency.Config{}, log, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls++
			require.NoError(t, h.execTx(r.Context(), "insert into effects (message_id) values ('x')"))
			if h.sql != nil {
				tx, err := outbox.SQLTx(r.Context())
				require.NoError(t, err)
				require.NoError(t, tx.Commit())
			} else {
				require.NoError(t, h.execTx(r.Context(), "commit"))
			}
			w.WriteHeader(201)
		}))
		for range 3 {
			got := askedOf(t, once, asking("k1", "one"))
			assert.Equal(t, 500, got.status)
		}
		assert.Equal(t, 1, calls)
		assert.Equal(t, 1, h.count(t, "select count(*) from effects where message_id = 'x'"))
		assert.Equal(t, 3, log.count("error: request failed: its handler may have committed"), "%v", *log.lines)
		assert.Equal(t, 422, askedOf(t, once, asking("k1", "two")).status)
		h.exec(t, "delete from outbox_idempotency")
		once = onceAround(t, h, idempotency.Config{}, o)
		assert.Equal(t, 201, askedOf(t, once, asking("k1", "one")).status)

		once = onceAround(t, h, idempotency.Config{}, idempotency.HandlerFunc(
			func(_ http.ResponseWriter, r *http.Request) error {
				assert.NoError(t, h.execTx(r.Context(), "insert into effects (message_id) values ('y')"))
				assert.NoError(t, h.execTx(r.Context(), "commit"))
				return &pgconn.PgError{Code: "40001"}
			}))
		assert.Equal(t, 500, askedOf(t, once, asking("", "one")).status)
		assert.Equal(t, 1, h.count(t, "select count(*) from effects where message_id = 'y'"),
			"not repeated although no row records the commit of a request without a key")
	})
}

// TestHTTPRepeats an attempt that met a serialization failure, with a fresh request and response.
func TestHTTPRepeats(t *testing.T) {
	h := onPgx(t)
	o := newOrdering(t, h)
	once := onceAround(t, h, idempotency.Config{},
		idempotency.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			n, err := o.order(r)
			require.NoError(t, err)
			assert.Empty(t, r.Header.Get("X-Spoilt"))
			assert.Empty(t, w.Header().Get("X-Attempt-1"))
			r.Header.Set("X-Spoilt", "1")
			w.Header().Set(fmt.Sprintf("X-Attempt-%d", n), "1")
			w.WriteHeader(int(200 + n))
			fmt.Fprint(w, n)
			if n < 3 {
				return fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: []string{"40001", "40P01"}[n-1]})
			}
			return nil
		}))
	got := askedOf(t, once, asking("k1", "one"))
	assert.Equal(t, 203, got.status)
	assert.Equal(t, "3", got.body)
	assert.Empty(t, got.header.Get("X-Attempt-2"))
	assert.Equal(t, "one", value[string](t, h, "select message_id from effects"), "the body as well")
	o.done(1)

	calls := 0
	once = onceAround(t, h, idempotency.Config{MaxRetries: -1},
		idempotency.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
			calls++
			return &pgconn.PgError{Code: "40001"}
		}))
	assert.Equal(t, 503, askedOf(t, once, asking("k2", "one")).status)
	assert.Equal(t, 1, calls)
}

// TestHTTPDatabaseAway: the handler is not called, and the client gets a 503 with Retry-After.
func TestHTTPDatabaseAway(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		log := newLogCapture(t)
		once := onceLogging(t, h, idempotency.Config{}, log, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			t.Error("called")
		}))
		h.exec(t, "alter table outbox_idempotency rename to gone")
		got := askedOf(t, once, asking("secret-key", "secret body"))
		assert.Equal(t, 503, got.status)
		assert.Equal(t, "1", got.header.Get("Retry-After"))
		assert.NotContains(t, got.body, "relation")
		assert.Equal(t, 1, log.count("schema.Migrate"))
		assert.Zero(t, log.count("secret"))
	})
}

// TestHTTPRollbackByOnBegin: if the handler is not called, no response is stored; a stored one is replayed.
func TestHTTPRollbackByOnBegin(t *testing.T) {
	h := onPgx(t)
	o := newOrdering(t, h)
	var begin func(ctx context.Context) error
	once := onceAround(t, h, idempotency.Config{OnBegin: func(ctx context.Context, _ *http.Request) error {
		return begin(ctx)
	}}, o)
	for _, err := range []error{outbox.ErrRolledBack, errors.New("no such tenant")} {
		begin = func(context.Context) error { return err }
		assert.Equal(t, 503, askedOf(t, once, asking("k1", "one")).status)
		o.done(0)
	}
	begin = func(context.Context) error { return nil }
	first := askedOf(t, once, asking("k1", "one"))
	begin = outbox.SetRollbackOnly
	askedOf(t, once, asking("k1", "one")).same(t, first)
	o.done(1)
}

// served sends a POST twice with the same key to a server whose handler is behind the middleware, and returns both
// responses.
func served(t *testing.T, h handle, handler http.HandlerFunc) (first, second *http.Response) {
	t.Helper()
	server := httptest.NewServer(onceAround(t, h, idempotency.Config{}, handler))
	defer server.Close()
	key := rand.Text()
	ask := func() *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("x"))
		require.NoError(t, err)
		r.Header.Set(idempotency.HeaderKey, key)
		answer, err := server.Client().Do(r)
		require.NoError(t, err)
		defer answer.Body.Close()
		_, err = io.Copy(io.Discard, answer.Body)
		require.NoError(t, err)
		return answer
	}
	first, second = ask(), ask()
	assert.Equal(t, "true", second.Header.Get(idempotency.HeaderReplayed),
		"status %d is not a replay", second.StatusCode)
	return first, second
}

// TestContentTypeIsReplayed: the content type that net/http detects, and none if the handler wants none.
func TestContentTypeIsReplayed(t *testing.T) {
	h := onPgx(t)
	for name, set := range map[string]func(http.Header){
		"guessed": func(http.Header) {},
		"none":    func(h http.Header) { h["Content-Type"] = nil },
		"said":    func(h http.Header) { h.Set("Content-Type", "application/json") },
	} {
		first, second := served(t, h, func(w http.ResponseWriter, _ *http.Request) {
			set(w.Header())
			_, _ = io.WriteString(w, "<html>")
		})
		assert.Equal(t, first.Header["Content-Type"], second.Header["Content-Type"], name)
		assert.Equal(t, name == "none", len(first.Header["Content-Type"]) == 0, name)
	}
}

// TestWriteDeadline: a handler that takes longer than the server's write timeout may extend it.
func TestWriteDeadline(t *testing.T) {
	h := onPgx(t)
	served(t, h, func(w http.ResponseWriter, _ *http.Request) {
		assert.NoError(t, http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Hour)))
	})
}

// TestTrailersAreNotAnnounced, because they are not sent: the length of the response is known.
func TestTrailersAreNotAnnounced(t *testing.T) {
	h := onPgx(t)
	first, second := served(t, h, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "x")
		w.Header().Set("X-Sum", "1")
		w.Header().Set(http.TrailerPrefix+"X-Other", "1")
	})
	for name, answer := range map[string]*http.Response{"the answer": first, "its replay": second} {
		assert.Empty(t, answer.Header["Trailer"], name)
		assert.Empty(t, answer.Trailer, name)
	}
}
