package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/watermill-outbox/examples/internal/demotest"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

func TestMain(m *testing.M) { demotest.Services(m, main) }

func signature(v verifier, at time.Time, body string) string {
	timestamp := strconv.FormatInt(at.Unix(), 10)
	return "t=" + timestamp + ",v1=" + hex.EncodeToString(v.sign(timestamp, []byte(body)))
}

func TestSignatures(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ours := verifier{secret: []byte("secret"), now: func() time.Time { return now }}
	other := verifier{secret: []byte("another")}
	const body = `{"id":"evt_1"}`
	right := signature(ours, now, body)
	_, v1, _ := strings.Cut(right, ",")
	for name, test := range map[string]struct {
		header string
		good   bool
	}{
		"right":              {right, true},
		"with spaces":        {strings.ReplaceAll(right, ",", ", "), true},
		"second of two":      {signature(other, now, body) + "," + v1, true},
		"first of two":       {right + ",v1=00ff", true},
		"other schemes too":  {right + ",v0=abc", true},
		"four minutes old":   {signature(ours, now.Add(-4*time.Minute), body), true},
		"four minutes ahead": {signature(ours, now.Add(4*time.Minute), body), true},
		"six minutes old":    {signature(ours, now.Add(-6*time.Minute), body), false},
		"six minutes ahead":  {signature(ours, now.Add(6*time.Minute), body), false},
		"other secret":       {signature(other, now, body), false},
		"other body":         {signature(ours, now, body+" "), false},
		"other time":         {"t=1700000001," + v1, false},
		"no time":            {v1, false},
		"no number":          {"t=now," + v1, false},
		"far away":           {"t=-9223372036854775808," + v1, false},
		"no signature":       {"t=1700000000", false},
		"empty signature":    {"t=1700000000,v1=", false},
		"no hex":             {"t=1700000000,v1=zz", false},
		"nothing":            {"", false},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Stripe-Signature", test.header)
		if err := ours.verify(r, []byte(body)); (err == nil) != test.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWebhook runs the program: an event that is sent three times is booked once, and a forged one never.
func TestWebhook(t *testing.T) {
	postgres, err := services.StartPostgres(t.Context(), services.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer postgres.Close()
	database, err := postgres.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, listener, database, "secret") }()
	for range 20 { // clients that never finish their requests
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn,
			"POST /webhooks/payments HTTP/1.1\r\nHost: shop\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
	}
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	send := func(id, kind, secret string) (int, string) {
		t.Helper()
		body := fmt.Sprintf(`{"id":%q,"type":%q,"data":{"amount":42}}`, id, kind)
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+listener.Addr().String()+"/webhooks/payments",
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Stripe-Signature", signature(verifier{secret: []byte(secret)}, time.Now(), body))
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, answer.Header.Get("Queue-Result")
	}
	post := func(id, secret string) (int, string) { return send(id, "payment.received", secret) }
	if status, result := send("evt_0", "customer.renamed", "secret"); status != 200 || result != "ignored" {
		t.Errorf("of a type that nobody handles: %d %s", status, result)
	}
	if status, result := post("evt_1", "secret"); status != 200 || result != "new" {
		t.Errorf("the first time: %d %s", status, result)
	}
	for range 2 {
		if status, result := post("evt_1", "secret"); status != 200 || result == "new" {
			t.Errorf("again: %d %s", status, result)
		}
	}
	if status, _ := post("evt_2", "guessed"); status != 401 {
		t.Errorf("forged: %d", status)
	}
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	count := func(query string) (n int) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for deadline := time.Now().Add(30 * time.Second); count("select count(*) from inbox_queue where state = 'done'") ==
		0; {
		if time.Now().After(deadline) {
			t.Fatal("the event was not handled")
		}
		time.Sleep(5 * time.Millisecond)
	}
	if n := count("select count(*) from payments"); n != 1 {
		t.Errorf("%d payments", n)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
