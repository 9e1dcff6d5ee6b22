package idempotency_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/idempotency"
)

// The handler writes in the transaction of its request. Authentication is outside, so that each replay is authorized
// again.
func ExampleNew() {
	var db *outbox.DB                                              // outbox.FromPgx
	authenticate := func(h http.Handler) http.Handler { return h } // your own

	once, err := idempotency.New(db, idempotency.Config{
		Tenant: func(r *http.Request) (string, error) { return r.Header.Get("Client"), nil },
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders",
		authenticate(once(idempotency.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			tx, err := outbox.PgxTx(r.Context())
			if err != nil {
				return err // rolled back, and the client gets a 500
			}
			if _, err := tx.Exec(r.Context(), "INSERT INTO orders DEFAULT VALUES"); err != nil {
				return err
			}
			w.WriteHeader(http.StatusCreated)
			return nil
		}))))
}

// Without the middleware of New, an error still gets a 500.
func ExampleHandlerFunc() {
	order := idempotency.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return errors.New("sold out") })
	w := httptest.NewRecorder()
	order.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders", nil))
	fmt.Println(w.Code)
	// Output: 500
}
