package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/examples/internal/demotest"
)

func TestMain(m *testing.M) { demotest.Services(m, main) }

// TestPage runs the program until its page shows the problems of this day.
func TestPage(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, listener) }()
	client := &http.Client{Timeout: 30 * time.Second}
	defer client.CloseIdleConnections()
	var body []byte
	for deadline := time.Now().Add(5 * time.Minute); !strings.Contains(string(body),
		"The broker is unavailable: invoices.created"); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the page does not show the problems: %s", body)
		}
		select {
		case err := <-ended:
			t.Fatalf("the program has ended: %v", err)
		default:
		}
		answer, err := client.Get("http://" + listener.Addr().String() + "/outbox/")
		if err != nil {
			continue // the server is not ready yet
		}
		body, _ = io.ReadAll(answer.Body)
		_ = answer.Body.Close()
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}
