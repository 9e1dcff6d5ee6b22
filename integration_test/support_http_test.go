package integration_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/idempotency"
)

// headerTenant replaces authentication in these tests.
const headerTenant = "Test-Tenant"

// onceAround wraps a handler in the middleware. Config.Tenant reads the header.
func onceAround(t testing.TB, h handle, cfg idempotency.Config, next http.Handler) http.Handler {
	t.Helper()
	return onceLogging(t, h, cfg, nil, next)
}

func onceLogging(
	t testing.TB, h handle, cfg idempotency.Config, log watermill.LoggerAdapter, next http.Handler,
) http.Handler {
	t.Helper()
	if cfg.Tenant == nil {
		cfg.Tenant = func(r *http.Request) (string, error) { return r.Header.Get(headerTenant), nil }
	}
	once, err := idempotency.New(h.db, cfg, log)
	require.NoError(t, err)
	return once(next)
}

// ordering is a handler that books orders: a row, an event, and a different response each time.
type ordering struct {
	t     testing.TB
	h     handle
	pub   *outbox.Publisher
	calls atomic.Int64
}

func newOrdering(t testing.TB, h handle) *ordering {
	t.Helper()
	newEffects(t, h)
	return &ordering{t: t, h: h, pub: newOutboxPublisher(t, h)}
}

// order writes an order and returns its number.
func (o *ordering) order(r *http.Request) (n int64, err error) {
	n = o.calls.Add(1)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return n, err
	}
	if err := o.h.execTx(r.Context(), `insert into effects (message_id) values ($1)`, string(body)); err != nil {
		return n, err
	}
	return n, o.pub.PublishContext(r.Context(), "orders", newMessage(string(body)))
}

func (o *ordering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, err := o.order(r)
	if err != nil {
		o.t.Errorf("order: %v", err)
		http.Error(w, "failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Location", fmt.Sprintf("/orders/%d", n))
	w.Header().Add("X-Many", "one")
	w.Header().Add("X-Many", "two \xff")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "order %d\x00\xff", n)
}

// done asserts that n rows and n events are committed.
func (o *ordering) done(n int) {
	o.t.Helper()
	assert.Equal(o.t, n, o.h.count(o.t, "select count(*) from effects"), "rows")
	assert.Equal(o.t, n, outboxed(o.t, o.h), "events")
}

// keys counts rows of requests.
func keys(t testing.TB, h handle) int {
	t.Helper()
	return h.count(t, "select count(*) from outbox_idempotency")
}

// asking returns a request. Without a key it has no Idempotency-Key.
func asking(key, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/orders?fast=1", strings.NewReader(body))
	r.Header.Set("Content-Type", "text/plain")
	if key != "" {
		r.Header.Set(idempotency.HeaderKey, key)
	}
	return r
}

// answered is a response that was read.
type answered struct {
	status int
	header http.Header
	body   string
}

func (a answered) replayed() bool { return a.header.Get(idempotency.HeaderReplayed) == "true" }

// same asserts that a is a replay of first.
func (a answered) same(t testing.TB, first answered) {
	t.Helper()
	assert.True(t, a.replayed(), "replayed")
	header := a.header.Clone()
	header.Del(idempotency.HeaderReplayed)
	assert.Equal(t, first, answered{a.status, header, a.body})
}

func askedOf(t testing.TB, h http.Handler, r *http.Request) answered {
	t.Helper()
	a := answer(h, r)
	body, err := io.ReadAll(a.Body)
	require.NoError(t, err)
	return answered{a.StatusCode, a.Header, string(body)}
}

// asks sends a request in the background.
func asks(t testing.TB, h http.Handler, r *http.Request) <-chan answered {
	got := make(chan answered, 1)
	go func() { got <- askedOf(t, h, r) }()
	return got
}

// waiters counts sessions that wait for a lock.
func waiters(t testing.TB, h handle) int {
	t.Helper()
	return h.count(t, `select count(*) from pg_stat_activity where datname = current_database() `+
		`and wait_event_type = 'Lock'`)
}
