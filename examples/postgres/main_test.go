package main

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/watermill-outbox/examples/internal/demotest"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

func TestMain(m *testing.M) { demotest.Services(m, main) }

// TestPostgresAlone runs the program: each order is booked, and has one receipt.
func TestPostgresAlone(t *testing.T) {
	postgres, err := services.StartPostgres(t.Context(), services.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer postgres.Close()
	database, err := postgres.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended, mails := make(chan error, 1), make(chan string, 10)
	go func() {
		ended <- run(ctx, database, func(mail string) (int, error) { mails <- mail; return len(mail), nil })
	}()
	receipts := map[string]bool{}
	for range 3 {
		select {
		case mail := <-mails:
			receipts[mail] = true
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(30 * time.Second):
			t.Fatal("a receipt is missing")
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(receipts) != 3 || len(mails) != 0 {
		t.Errorf("receipts: %v and %d more", receipts, len(mails))
	}
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var booked int
	if err := conn.QueryRow(t.Context(), "select count(*) from orders where booked").Scan(&booked); err != nil {
		t.Fatal(err)
	}
	if booked != 3 {
		t.Errorf("booked %d orders", booked)
	}
}
