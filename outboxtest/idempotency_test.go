package outboxtest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/idempotency"
	"github.com/millrace-go/watermill-outbox/outboxtest"
)

// TestIdempotency: an HTTP handler behind package idempotency is tested without a Postgres: it is called once for a
// key, until its row expires, and again if it failed.
func TestIdempotency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := outboxtest.NewDB(t)
		pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		once, err := idempotency.New(db, idempotency.Config{
			Tenant: func(*http.Request) (string, error) { return "ann", nil }, Retention: time.Hour, Wait: time.Second,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		calls, takes, answers := 0, time.Duration(0), http.StatusCreated
		order := once(idempotency.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			calls++
			time.Sleep(takes)
			body, _ := io.ReadAll(r.Body)
			if err := pub.PublishContext(r.Context(), "orders", message.NewMessage(fmt.Sprint(calls), body)); err != nil {
				return err
			}
			w.WriteHeader(answers)
			fmt.Fprintf(w, "order %d", calls)
			return nil
		}))
		ask := func(body string) string {
			r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
			r.Header.Set("Idempotency-Key", "k1")
			w := httptest.NewRecorder()
			order.ServeHTTP(w, r)
			if w.Code != http.StatusCreated {
				return fmt.Sprint(w.Code)
			}
			return fmt.Sprint(w.Code, " ", w.Body, " ", w.Header().Get(idempotency.HeaderReplayed))
		}
		expect := func(what, got, want string) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		answers = http.StatusInternalServerError
		expect("a failure", ask("one"), "500")
		answers = http.StatusCreated
		expect("after it", ask("one"), "201 order 2 ")
		expect("again", ask("one"), "201 order 2 true")
		expect("another body", ask("two"), "422")
		time.Sleep(2 * time.Hour)
		takes = 10 * time.Second
		first := make(chan string)
		go func() { first <- ask("two") }()
		synctest.Wait()
		expect("meanwhile", ask("two"), "409")
		expect("after the retention", <-first, "201 order 3 ")
		published := outboxtest.Drain(t, db)
		if len(published) != 2 {
			t.Errorf("%d messages were published", len(published))
		}
	})
}
