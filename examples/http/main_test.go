package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-go/watermill-outbox/examples/internal/demotest"
	"github.com/millrace-go/watermill-outbox/idempotency"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

func TestMain(m *testing.M) { demotest.Services(m, main) }

// TestHTTP posts orders, several times each, to a service that is started twice.
func TestHTTP(t *testing.T) {
	postgres, err := services.StartPostgres(t.Context(), services.Options{Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer postgres.Close()
	broker, err := services.StartNATS(t.Context(), services.Options{Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	database, err := postgres.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := natsgo.Connect(broker.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "orders", Subjects: []string{"orders"},
	}); err != nil {
		t.Fatal(err)
	}
	events, err := js.OrderedConsumer(t.Context(), "orders", jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}

	client := &http.Client{Timeout: 5 * time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	type answer struct {
		status         int
		body, location string
		replayed       bool
	}
	var first answer
	for start := range 2 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx, listener, database, broker.URL(), "alice=secret,bob=other") }()
		post := func(token, key, body string) answer {
			t.Helper()
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+listener.Addr().String()+"/orders",
				strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+token)
			r.Header.Set(idempotency.HeaderKey, key)
			got, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer got.Body.Close()
			text, err := io.ReadAll(got.Body)
			if err != nil {
				t.Fatal(err)
			}
			return answer{
				got.StatusCode, string(text), got.Header.Get("Location"), got.Header.Get(idempotency.HeaderReplayed) == "true",
			}
		}
		if start == 0 {
			if first = post("secret", `"1"`, `{"cents": 500}`); first.status != 201 || first.replayed {
				t.Errorf("the first time: %+v", first)
			}
			first.replayed = true
			if got := post("other", `"1"`, `{"cents": 500}`); got.status != 201 || got.replayed || got.body == first.body {
				t.Errorf("of another client: %+v", got)
			}
		}
		for range 2 { // also after a restart
			if got := post("secret", `"1"`, `{"cents": 500}`); got != first {
				t.Errorf("again: %+v, and the first was %+v", got, first)
			}
		}
		for what, got := range map[int]answer{
			422: post("secret", `"1"`, `{"cents": 501}`), 400: post("secret", `"2"`, `{}`),
			401: post("guessed", `"1"`, `{"cents": 500}`),
		} {
			if got.status != what {
				t.Errorf("%+v, want %d", got, what)
			}
		}
		if start == 0 {
			for range 2 {
				msg, err := events.Next(jetstream.FetchMaxWait(5 * time.Minute))
				if err != nil {
					t.Fatal(err)
				}
				if msg.Headers().Get("_watermill_message_uuid") == "" || len(msg.Data()) == 0 {
					t.Errorf("event %s %v", msg.Data(), msg.Headers())
				}
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var orders, written int
	if err := conn.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox)").Scan(
		&orders, &written); err != nil {
		t.Fatal(err)
	}
	if orders != 2 || written != 2 {
		t.Errorf("%d orders, %d events", orders, written)
	}
}

func TestTokens(t *testing.T) {
	for _, bad := range []string{"", "alice", "alice=", "=secret", "alice=secret,"} {
		if _, err := parseTokens(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
