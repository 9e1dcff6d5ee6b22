// Command webhook receives webhooks of a payment provider: it verifies and stores them, responds, and handles them
// afterwards, each once, however often the provider sends it.
//
//	DATABASE_URL=postgres://me:secret@localhost/shop WEBHOOK_SECRET=whsec_try go run ./webhook
//
// To try it, send a webhook. Send the last line twice: the header Queue-Result is "new", then "already done" ("updated"
// if not handled yet), and the table payments has one row.
//
//	body='{"id":"evt_1","type":"payment.received","data":{"amount":42}}'; now=$(date +%s)
//	sign=$(printf '%s.%s' "$now" "$body" | openssl dgst -sha256 -hmac whsec_try -hex | sed 's/.* //')
//	curl -i -H "Stripe-Signature: t=$now,v1=$sign" -d "$body" http://127.0.0.1:8080/webhooks/payments
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
	"github.com/millrace-go/watermill-outbox/schema"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", "127.0.0.1:8080")
	if err == nil {
		err = run(ctx, listener, os.Getenv("DATABASE_URL"), os.Getenv("WEBHOOK_SECRET"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// readTimeout is how long a request may take to arrive: no client can hold a connection by sending slowly.
const readTimeout = 5 * time.Second

// event has the fields of a webhook that matter here.
type event struct {
	ID   string `json:"id"`
	Type string `json:"type"`
	Data struct {
		Amount int64 `json:"amount"`
	} `json:"data"`
}

func run(ctx context.Context, listener net.Listener, databaseURL, secret string) error {
	switch {
	case secret == "":
		return errors.New("WEBHOOK_SECRET is empty: anybody could sign with that")
	case databaseURL == "":
		return errors.New("DATABASE_URL is empty: set it, such as to postgres://me:secret@localhost/shop")
	}
	logger := watermill.NewStdLogger(false, false)
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, logger)
	if err != nil {
		return err
	}
	if _, err := schema.Migrate(ctx, db, schema.MigrateConfig{}); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx,
		`create table if not exists payments (event_id text primary key, amount bigint not null)`); err != nil {
		return err
	}

	store, err := queue.NewStore(db, queue.StoreConfig{HashContent: true}, logger)
	if err != nil {
		return err
	}
	handlers := map[string]queue.Handler{"payment.received": {Handle: book}}
	webhook, err := queue.NewWebhook(store, queue.WebhookConfig{
		Verify: verifier{secret: []byte(secret), now: time.Now}.verify,
		Item: func(_ *http.Request, body []byte) (queue.Item, error) {
			var e event
			if err := json.Unmarshal(body, &e); err != nil {
				return queue.Item{}, err
			}
			if _, handled := handlers[e.Type]; !handled {
				return queue.Item{}, queue.ErrIgnore // the provider sends many types, and must not repeat the ignored ones
			}
			return queue.Item{ID: queue.ID{Source: "payments", MessageID: e.ID}, Topic: e.Type, Payload: body}, nil
		},
	}, logger)
	if err != nil {
		return err
	}
	dispatcher, err := queue.NewDispatcher(store, queue.DispatcherConfig{Handlers: handlers}, logger)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/webhooks/payments", webhook)
	// Webhooks end first, so that everything they stored can still be handled.
	return outbox.Run(ctx, outbox.HTTPServer(&http.Server{Handler: mux, ReadTimeout: readTimeout}, listener), dispatcher)
}

// book handles a payment. The same transaction marks the message done.
func book(ctx context.Context, msg *queue.Message) error {
	var e event
	if err := json.Unmarshal(msg.Payload, &e); err != nil {
		return outbox.Poison(err)
	}
	tx, err := outbox.PgxTx(ctx)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `insert into payments (event_id, amount) values ($1, $2)`, e.ID, e.Data.Amount)
	return err
}
