// Command http is a service whose clients may repeat a request: an order that is posted again under the same
// Idempotency-Key is booked once, its event is published, and the client gets the first response again.
//
//	nats stream add orders --subjects orders --defaults # JetStream accepts an event only if a stream has its subject
//	DATABASE_URL=postgres://... NATS_URL=nats://... API_TOKENS=alice=secret,bob=other go run ./http
//	curl -i localhost:8080/orders -H 'Authorization: Bearer secret' -H 'Idempotency-Key: "1"' -d '{"cents": 500}'
package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/idempotency"
	"github.com/millrace-go/watermill-outbox/nats"
	"github.com/millrace-go/watermill-outbox/schema"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", "127.0.0.1:8080")
	if err == nil {
		err = run(ctx, listener, os.Getenv("DATABASE_URL"), os.Getenv("NATS_URL"), os.Getenv("API_TOKENS"))
	}
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, listener net.Listener, databaseURL, natsURL, tokens string) error {
	logger := watermill.NewSlogLogger(nil)
	clients, err := parseTokens(tokens)
	if err != nil {
		return err
	}
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
	if _, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS orders (
		id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, client text NOT NULL, cents bigint NOT NULL)`); err != nil {
		return err
	}

	events, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, logger)
	if err != nil {
		return err
	}
	once, err := idempotency.New(db, idempotency.Config{Tenant: clientOf, Required: true}, logger)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	// in this order: each replay is authorized again
	mux.Handle("POST /orders", authenticate(clients, once(order(events))))

	broker, err := nats.NewPublisher(nats.PublisherConfig{URL: natsURL}, logger)
	if err != nil {
		return err
	}
	defer broker.Close()
	fwd, err := forwarder.New(db, broker, forwarder.Config{}, logger)
	if err != nil {
		return err
	}
	// Requests end first, so that everything they committed can still be published.
	return outbox.Run(ctx, outbox.HTTPServer(&http.Server{Handler: mux, ReadTimeout: 10 * time.Second}, listener), fwd)
}

// order books one order. Row, event and response are one transaction, from the request's context.
func order(events *outbox.Publisher) http.Handler {
	return idempotency.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		var o struct {
			ID     int64  `json:"id"`
			Client string `json:"client"`
			Cents  int64  `json:"cents"`
		}
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.Cents <= 0 {
			http.Error(w, `send {"cents": 500}`, http.StatusBadRequest)
			return nil
		}
		o.Client, _ = clientOf(r)
		tx, err := outbox.PgxTx(r.Context())
		if err != nil {
			return err
		}
		err = tx.QueryRow(r.Context(), `INSERT INTO orders (client, cents) VALUES ($1, $2) RETURNING id`, o.Client,
			o.Cents).Scan(&o.ID)
		if err != nil {
			return err
		}
		body, err := json.Marshal(o)
		if err != nil {
			return err
		}
		if err := events.PublishContext(r.Context(), "orders", message.NewMessage(watermill.NewUUID(), body)); err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", fmt.Sprintf("/orders/%d", o.ID))
		w.WriteHeader(http.StatusCreated)
		_, err = w.Write(body)
		return err
	})
}

type clientKey struct{}

// clientOf returns the client that authenticate has found.
func clientOf(r *http.Request) (string, error) {
	client, ok := r.Context().Value(clientKey{}).(string)
	if !ok {
		return "", errors.New("the request was not authenticated")
	}
	return client, nil
}

// authenticate lets clients through whose token is known.
func authenticate(clients map[[sha256.Size]byte]string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		// a hash, so that timing does not reveal how much of a guess is right
		client, ok := clients[sha256.Sum256([]byte(token))]
		if !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), clientKey{}, client)))
	})
}

// parseTokens reads client=token,client=token.
func parseTokens(tokens string) (map[[sha256.Size]byte]string, error) {
	clients := map[[sha256.Size]byte]string{}
	for pair := range strings.SplitSeq(tokens, ",") {
		client, token, ok := strings.Cut(pair, "=")
		if !ok || client == "" || token == "" {
			return nil, errors.New("API_TOKENS must be client=token,client=token: without tokens anybody could order")
		}
		clients[sha256.Sum256([]byte(token))] = client
	}
	return clients, nil
}
