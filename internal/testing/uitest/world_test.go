package uitest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/schema"
)

// patience limits the wait for something that must happen.
const patience = 30 * time.Second

// world is a page with its database.
type world struct {
	url   string
	pool  *pgxpool.Pool
	db    *outbox.DB
	asked atomic.Int64 // requests for pages
}

var startPostgres = sync.OnceValues(func() (*services.Postgres, error) {
	return services.StartPostgres(context.Background(), services.Options{PostgresSettings: []string{"fsync=off"}})
})

// newWorld returns a page on its own database, with this access for everyone.
func newWorld(t *testing.T, access ui.Access) *world {
	t.Helper()
	server, err := startPostgres()
	require.NoError(t, err)
	url, err := server.NewDatabase(t.Context())
	require.NoError(t, err)
	pool, err := pgxpool.New(context.Background(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	require.NoError(t, err)
	_, err = schema.Migrate(t.Context(), db, schema.MigrateConfig{})
	require.NoError(t, err)
	page, err := ui.New(db, ui.Config{
		Title: "Shop", SampleInterval: 100 * time.Millisecond,
		Authorize: func(*http.Request) (ui.Access, error) { return access, nil },
	}, watermill.NewStdLogger(false, false))
	require.NoError(t, err)
	w := &world{pool: pool, db: db}
	mux := http.NewServeMux()
	mux.Handle("/ops/outbox/",
		http.StripPrefix("/ops/outbox", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w.asked.Add(1)
			page.ServeHTTP(rw, r)
		})))
	site := httptest.NewServer(mux)
	t.Cleanup(site.Close)
	w.url = site.URL + "/ops/outbox/"
	w.start(t, page.Run)
	return w
}

// start runs a function until the test ends.
func (w *world) start(t *testing.T, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

func (w *world) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	_, err := w.pool.Exec(t.Context(), query, args...)
	require.NoError(t, err, query)
}

func (w *world) count(t *testing.T, query string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, w.pool.QueryRow(t.Context(), query, args...).Scan(&n), query)
	return n
}

// broker discards messages, and refuses some.
type broker struct{}

var errAway = errors.New("dial tcp 10.2.0.17:9092: connect: connection refused")

func (broker) Publish(topic string, messages ...*message.Message) error {
	switch topic {
	case "emails.welcome":
		return fmt.Errorf("smtp: 451 4.7.1 try again later, queue id %s", messages[0].UUID[:8])
	case "invoices.created":
		return errAway
	}
	return nil
}

func (broker) Close() error { return nil }

// forward runs a forwarder that publishes to the broker.
func (w *world) forward(t *testing.T) {
	t.Helper()
	fwd, err := forwarder.New(w.db, broker{}, forwarder.Config{
		Name: "shop-7c9f", OutageBackoff: outbox.Backoff{Initial: time.Minute}, Backoff: outbox.Backoff{Initial: time.Minute},
		Classify: func(err error) forwarder.Verdict {
			if errors.Is(err, errAway) {
				return forwarder.Unavailable
			}
			return forwarder.Retry
		},
	}, nil)
	require.NoError(t, err)
	w.start(t, fwd.Run)
}

// badDay fills the tables with an operator's bad day.
func (w *world) badDay(t *testing.T) {
	t.Helper()
	for topic, errs := range map[string]struct {
		text string
		n    int
	}{
		"payments.captured": {
			`kafka server: Message was too large, server rejected it to avoid allocation error: 1048%03d bytes`, 42,
		},
		"orders.placed":  {`schema registry: subject "orders.placed-value" has no version %d`, 17},
		"search.reindex": {`marshal event 7f3c%04d-11ee-b962: unsupported value: NaN`, 3},
	} {
		w.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, metadata, created_at, due_at, attempts, last_error, dead_at)
			SELECT gen_random_uuid(), $1, 'order-' || (1000 + i * 37 % 900), convert_to('{"order_id": ' || (1000 + i) || ', "customer": {"name": "Ada", "city": "Graz"}, "lines": [{"sku": "A-17", "qty": 2}], "total_cents": 4990}', 'UTF8'),
			       '{"event_type": "order.placed", "event_version": "2", "correlation_id": "c0ffee"}', now() - i * interval '97 seconds', now(), 10, format(replace($2, '%d', lpad(i::text, 3, '0')), ''), now() - i * interval '60 seconds'
			  FROM generate_series(1, $3::int) i`, topic, strings.NewReplacer("%03d", "%d", "%04d", "%d").Replace(errs.text),
			errs.n)
	}
	w.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, due_at) SELECT gen_random_uuid(), 'reminders.due', '', `+
		`'', now() + i * interval '1 minute' FROM generate_series(1, 240) i`)
	w.exec(t, `INSERT INTO outbox (uuid, topic, key, payload) SELECT gen_random_uuid(), 'emails.welcome', 'c' || i, `+
		`'{}' FROM generate_series(1, 12) i`)
	w.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, created_at) SELECT gen_random_uuid(), 'invoices.created', `+
		`'i' || i, '{}', now() - interval '4 minutes' FROM generate_series(1, 380) i`)
	w.exec(t, `INSERT INTO inbox (consumer, message_id, received_at, attempts, last_error, dead_at)
		SELECT 'shop/book', 'm' || i, now() - i * interval '5 minutes', 10, 'order ' || i || ' has no customer', now() FROM generate_series(1, 4) i`)
	w.exec(t, `INSERT INTO inbox (consumer, message_id, received_at, attempts, last_error) VALUES ('shop/notify', 'm5', `+
		`now() - interval '3 minutes', 6, 'mail server is away')`)
	w.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, payload, first_seen_at, due_at, attempts, last_error)
		SELECT 'stripe', 'evt_' || i, 'charge.succeeded', CASE WHEN i < 3 THEN 'dead' ELSE 'processing' END, '{}', now() - i * interval '1 minute',
		       CASE WHEN i > 6 THEN NULL ELSE now() + interval '1 minute' END, CASE WHEN i < 7 THEN 3 ELSE 0 END, CASE WHEN i < 7 THEN 'no account ' || i END
		  FROM generate_series(1, 20) i`)
}

// traffic writes messages that are published immediately, at a varying rate, for some time.
func (w *world) traffic(t *testing.T, rounds int) {
	t.Helper()
	for i := range rounds {
		w.exec(t, `INSERT INTO outbox (uuid, topic, key, payload) SELECT gen_random_uuid(), CASE i % 5 `+
			`WHEN 0 THEN 'orders.placed' WHEN 1 THEN 'payments.captured' ELSE 'stock.reserved' END, 'k' || i % 50, `+
			`'{}' FROM generate_series(1, $1::int) i`,
			20+(i*i*7)%180+300*(i%9/7))
		w.db.Wake()
		time.Sleep(60 * time.Millisecond) // gives the charts a shape
	}
}
