package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/schema"
)

// TestMain also runs the program itself, in a process that a test may kill.
func TestMain(m *testing.M) {
	if limit := os.Getenv("SAGA_LIMIT"); limit != "" {
		d, err := time.ParseDuration(limit)
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		if err == nil {
			err = run(ctx, os.Getenv("DATABASE_URL"), d, os.Args[1:])
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stop := services.StopOnSignal()
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop services:", err)
		code = 1
	}
	os.Exit(code)
}

var start = sync.OnceValues(func() (*services.Postgres, error) {
	return services.StartPostgres(context.Background(), services.Options{Log: io.Discard})
})

type shop struct {
	t    *testing.T
	url  string
	conn *pgx.Conn
}

func newShop(t *testing.T) *shop {
	t.Helper()
	postgres, err := start()
	if err != nil {
		t.Fatal(err)
	}
	s := &shop{t: t}
	if s.url, err = postgres.NewDatabase(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.conn, err = pgx.Connect(t.Context(), s.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.conn.Close(context.Background()) })
	s.exec(tables)
	s.exec(`INSERT INTO stock VALUES ('book', 1), ('lamp', 5)`)
	return s
}

func (s *shop) exec(query string) {
	s.t.Helper()
	if _, err := s.conn.Exec(s.t.Context(), query); err != nil {
		s.t.Fatal(err)
	}
}

// start runs the program in its own process. It ends when it is interrupted, or is killed at the end of the test.
func (s *shop) start(limit time.Duration, args ...string) (end func(os.Signal)) {
	s.t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "SAGA_LIMIT="+limit.String(), "DATABASE_URL="+s.url)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := false
	end = func(by os.Signal) {
		if !ended {
			ended = true
			_ = cmd.Process.Signal(by)
			_ = cmd.Wait()
		}
	}
	s.t.Cleanup(func() { end(os.Kill) })
	return end
}

func (s *shop) value(query string) (v string) {
	s.t.Helper()
	if err := s.conn.QueryRow(s.t.Context(), query).Scan(&v); err != nil && err != pgx.ErrNoRows {
		s.t.Fatal(err)
	}
	return v
}

func (s *shop) waitFor(order, state string) {
	s.t.Helper()
	query := fmt.Sprintf(`SELECT state FROM sagas WHERE order_id = '%s'`, order)
	for deadline := time.Now().Add(5 * time.Minute); s.value(query) != state; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s is %s and not %s", order, s.value(query), state)
		}
	}
}

func (s *shop) want(what, query, want string) {
	s.t.Helper()
	if got := s.value(query); got != want {
		s.t.Errorf("%s: %s and not %s", what, got, want)
	}
}

const longTime = time.Hour

func TestOrdersAreBookedOrTakenBack(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for _, test := range []struct{ order, item, amount, state string }{
		{"order-1", "book", "42", "booked"},
		{"order-2", "book", "42", "cancelled"},   // sold out, so the payment is returned
		{"order-3", "lamp", "5000", "cancelled"}, // refused, so nothing is reserved
	} {
		end := s.start(longTime, test.order, test.item, test.amount)
		s.waitFor(test.order, test.state)
		s.want("old rows of the inbox are deleted",
			`SELECT bool_and((facts->>'inbox_retention')::bigint > 0)::text FROM outbox_forwarders`, "true")
		end(os.Interrupt)
	}
	s.want("payments", `SELECT string_agg(order_id || CASE WHEN returned THEN ' returned' ELSE '' END, ', ' `+
		`ORDER BY order_id) FROM payments`,
		"order-1, order-2 returned")
	s.want("stock", `SELECT string_agg(item || ' ' || in_stock, ', ' ORDER BY item) FROM stock`, "book 0, lamp 5")
}

// TestCrashInTheMiddle kills the program during a reservation that cannot finish; another process continues there.
func TestCrashInTheMiddle(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all has it")
	}
	t.Parallel()
	s := newShop(t)
	s.exec(`BEGIN`)
	s.exec(`UPDATE stock SET in_stock = in_stock WHERE item = 'book'`) // reservations wait for this lock
	end := s.start(longTime, "order-1", "book", "42")
	other, err := pgx.Connect(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	for deadline, waiting := time.Now().Add(5*time.Minute), 0; waiting == 0; time.Sleep(5 * time.Millisecond) {
		if err := other.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE stock%'
			AND datname = current_database()`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody reserves")
		}
	}
	end(os.Kill)
	s.exec(`ROLLBACK`)
	s.start(longTime)
	s.waitFor("order-1", "booked")
	s.want("payments", `SELECT count(*)::text FROM payments WHERE NOT returned`, "1")
	s.want("stock", `SELECT in_stock::text FROM stock WHERE item = 'book'`, "0")
}

// TestTimeIsUp: the time limit expires before the payment.
func TestTimeIsUp(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	end := s.start(longTime)
	s.exec(`INSERT INTO sagas VALUES ('order-1', 'lamp', 42, 'paying')`)
	pool, err := pgxpool.New(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := schema.Migrate(t.Context(), db, schema.MigrateConfig{}); err != nil {
		// the program may not have done it yet
		t.Fatal(err)
	}
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.InTx(t.Context(), db, func(ctx context.Context) error {
		return pub.PublishContext(ctx, topic, newMessage("order-1", timeIsUp), newMessage("order-1", takePayment))
	}); err != nil {
		t.Fatal(err)
	}
	s.waitFor("order-1", "cancelled")
	s.want("the payment", `SELECT returned::text FROM payments WHERE order_id = 'order-1'`, "true")
	s.want("stock", `SELECT in_stock::text FROM stock WHERE item = 'lamp'`, "5")
	end(os.Interrupt)
}
