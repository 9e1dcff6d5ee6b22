package outbox

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestHTTPServerFinishesRequests: a request in flight when the context ends gets its response, and no other is
// accepted.
func TestHTTPServerFinishesRequests(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	began, finish := make(chan struct{}), make(chan struct{})
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-finish
		_, _ = w.Write([]byte("booked"))
	})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, HTTPServer(server, listener)) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func() (string, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String(), nil)
		if err != nil {
			return "", err
		}
		answer, err := client.Do(r)
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return string(body), err
	}
	type result struct {
		body string
		err  error
	}
	results := make(chan result, 1)
	go func() { body, err := get(); results <- result{body, err} }()
	<-began
	cancel()
	for { // until the server accepts no more
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	close(finish)
	if r := <-results; r.err != nil || r.body != "booked" {
		t.Errorf("the request got %q, %v", r.body, r.err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestHTTPServerSaysWhyItDoesNotServe(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := Run(t.Context(), HTTPServer(&http.Server{Addr: listener.Addr().String()}, nil)); err == nil {
		t.Error("serves on a port that is taken")
	}
	if err := Run(t.Context(), HTTPServer(nil, nil)); err == nil {
		t.Error("serves without a server")
	}
}

// TestReadyWithoutADatabase answers 503.
func TestReadyWithoutADatabase(t *testing.T) {
	w := httptest.NewRecorder()
	Ready(nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d", w.Code)
	}
}
