package ui_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin/ui"
)

// The page under a prefix of the service's own mux. The service decides who may act.
func ExampleNew() {
	pool, err := pgxpool.New(context.Background(), "postgres://localhost/shop") // connects on first use
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	page, err := ui.New(db, ui.Config{
		Title: "Shop",
		Authorize: func(r *http.Request) (ui.Access, error) {
			user, _, ok := r.BasicAuth() // in a real service: the session of your other internal pages
			if !ok {
				return ui.Access{}, errors.New("nobody is logged in")
			}
			return ui.Access{Actor: user, Act: user == "jane"}, nil
		},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/outbox/", page)

	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest("GET", "/outbox/", nil))
	fmt.Println(answer.Code)
	// Output: 403
}
