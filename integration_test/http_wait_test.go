package integration_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/idempotency"
)

// heldHandler is a handler that waits until it may go on.
type heldHandler struct {
	entered chan struct{} // one for each call
	release chan int      // with which status: 0 = that of the handler within
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

// TestHTTPTwins: of two requests at once one is carried out. The other one waits, in its process or in the database,
// and gets the same.
func TestHTTPTwins(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		o := newOrdering(t, h)
		b := heldUp(o)
		cfg := idempotency.Config{Wait: patience}
		here, elsewhere := onceAround(t, h, cfg, b), onceAround(t, h, cfg, b)
		first := asks(t, here, asking("k1", "one"))
		within(t, "the handler is called", b.entered)
		beside, there := asks(t, here, asking("k1", "one")), asks(t, elsewhere, asking("k1", "one"))
		other := asks(t, elsewhere, asking("k1", "two"))
		eventually(t, func() bool { return waiters(t, h) == 1 }, "one waits for the transaction, those beside it in memory")
		b.release <- 0
		got := within(t, "the answer", first)
		assert.Equal(t, 201, got.status)
		within(t, "the one beside", beside).same(t, got)
		within(t, "the one elsewhere", there).same(t, got)
		assert.Equal(t, 422, within(t, "another body", other).status)
		o.done(1)
	})
}

// TestHTTPTwinOfAFailure carries the request out itself.
func TestHTTPTwinOfAFailure(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
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
	})
}

// TestHTTPConflict: who has waited long enough is told when to come again, and has changed nothing for the handler.
func TestHTTPConflict(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		o := newOrdering(t, h)
		b := heldUp(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.NoError(t, h.execTx(r.Context(), `do $$ begin assert current_setting('lock_timeout') = '0'; end $$`),
				"its own statements wait as ever")
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
			assert.Equal(t, 201, within(t, "the one that was first", twin).status)
		}
		b.release <- 0
		got := within(t, "the first", first)
		assert.Equal(t, 201, got.status)
		askedOf(t, patient, asking("k1", "one")).same(t, got)
		o.done(3)
	})
}

// TestHTTPWaitersKeepNoConnections: a client with many repetitions of a slow request has one connection for the
// request, and another one at most in each other process.
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
	const others = 5 // while they are served, all repetitions have come
	for i := range others {
		assert.Equal(t, 201, askedOf(t, free, asking("other"+itoa(i), "two")).status, "no connection is left")
	}
	b.release <- 0
	b.release <- 0
	for _, one := range all {
		assert.Equal(t, 201, within(t, "an answer", one).status)
	}
	o.done(1 + others)
}

// TestHTTPIsolation: where the database would not show a twin what the first one has committed, its attempt is
// repeated.
func TestHTTPIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			forEachHandle(t, func(t *testing.T, h handle) {
				o := newOrdering(t, h)
				b := heldUp(o)
				cfg := idempotency.Config{Wait: patience, Isolation: level}
				here, elsewhere := onceAround(t, h, cfg, b), onceAround(t, h, cfg, b)
				first := asks(t, here, asking("k1", "one"))
				within(t, "the handler is called", b.entered)
				there := asks(t, elsewhere, asking("k1", "one"))
				eventually(t, func() bool { return waiters(t, h) == 1 }, "the other one waits")
				b.release <- 0
				got := within(t, "the answer", first)
				require.Equal(t, 201, got.status)
				within(t, "the same", there).same(t, got)
				askedOf(t, here, asking("k1", "one")).same(t, got)
				o.done(1)
			})
		})
	}
}
