package integration_test

import (
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/idempotency"
)

// served sends a POST twice with the same key to a server whose handler is behind the middleware, and returns both
// responses.
func served(t *testing.T, h handle, handler http.HandlerFunc) (first, second *http.Response) {
	t.Helper()
	once, err := idempotency.New(h.db, idempotency.Config{
		Tenant: func(*http.Request) (string, error) { return "ann", nil },
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(once(handler))
	defer server.Close()
	key := rand.Text()
	ask := func() *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Idempotency-Key", key)
		answer, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if _, err := io.ReadAll(answer.Body); err != nil {
			t.Error(err)
		}
		return answer
	}
	first, second = ask(), ask()
	if second.Header.Get(idempotency.HeaderReplayed) != "true" {
		t.Errorf("status %d is not a replay", second.StatusCode)
	}
	return first, second
}

// TestContentTypeIsReplayed: the one that net/http detects, and none if the handler wants none.
func TestContentTypeIsReplayed(t *testing.T) {
	h := onPgx(t)
	for name, set := range map[string]func(http.Header){
		"guessed": func(http.Header) {},
		"none":    func(h http.Header) { h["Content-Type"] = nil },
		"said":    func(h http.Header) { h.Set("Content-Type", "application/json") },
	} {
		first, second := served(t, h, func(w http.ResponseWriter, _ *http.Request) {
			set(w.Header())
			_, _ = io.WriteString(w, "<html>")
		})
		was, now := first.Header["Content-Type"], second.Header["Content-Type"]
		if len(was) != len(now) || strings.Join(was, ";") != strings.Join(now, ";") {
			t.Errorf("%s: the answer has %q, and its replay %q", name, was, now)
		}
		if (len(was) == 0) != (name == "none") {
			t.Errorf("%s: the answer has %q", name, was)
		}
	}
}

// TestSecretsAreNotStored: a token in the response reaches the client once, and no table stores it.
func TestSecretsAreNotStored(t *testing.T) {
	h := onPgx(t)
	first, second := served(t, h, func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range []string{"X-Auth-Token", "x-access-token", "Authorization", "X-Api-Key", "X-Csrf-Token"} {
			w.Header().Set(name, "s3cr3t")
		}
		w.Header().Set("X-Order", "7")
	})
	if first.Header.Get("X-Auth-Token") != "s3cr3t" || second.Header.Get("X-Order") != "7" {
		t.Errorf("the response has %v, its replay %v", first.Header, second.Header)
	}
	for name, values := range second.Header {
		if strings.Contains(strings.Join(values, ""), "s3cr3t") {
			t.Errorf("%s was stored", name)
		}
	}
}

// TestWriteDeadline: a handler that takes longer than the server's write timeout may extend it.
func TestWriteDeadline(t *testing.T) {
	h := onPgx(t)
	served(t, h, func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Hour)); err != nil {
			t.Error(err)
		}
	})
}

// TestTrailersAreNotAnnounced, since they are not sent: the length of the response is known.
func TestTrailersAreNotAnnounced(t *testing.T) {
	h := onPgx(t)
	first, second := served(t, h, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "x")
		w.Header().Set("X-Sum", "1")
		w.Header().Set(http.TrailerPrefix+"X-Other", "1")
	})
	for name, answer := range map[string]*http.Response{"the answer": first, "its replay": second} {
		if len(answer.Header["Trailer"])+len(answer.Trailer) > 0 {
			t.Errorf("%s announces %v, with %v", name, answer.Header["Trailer"], answer.Trailer)
		}
	}
}
