package nats_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/publisher/nats"
)

// TestLogOfAServerThatSaysNothing waits no longer for it than ctx says, and than until Close, whoever else waits.
func TestLogOfAServerThatSaysNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan struct{}, 10)
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			defer conn.Close()
			accepted <- struct{}{}
		}
	}()
	url := "nats://" + l.Addr().String()
	log, err := nats.NewTopicReader(nats.TopicReaderConfig{URL: url + "," + url + "/"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ends := func(what string, ended chan error, want error) {
		t.Helper()
		select {
		case err := <-ended:
			if !errors.Is(err, want) {
				t.Errorf("%s: it ends with %v, want %v", what, err, want)
			}
		case <-time.After(20 * time.Second): // of the 30 that each server may take
			t.Fatalf("%s: it waits on", what)
		}
	}
	patient, impatient, closed := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { patient <- log.Each(context.Background(), "orders", time.Time{}, nil) }()
	<-accepted
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _, _, err := log.Check(ctx, []string{"orders"}); impatient <- err }()
	cancel()
	ends("ctx", impatient, context.Canceled)
	go func() { closed <- log.Close() }()
	ends("Close", closed, nil)
	ends("Each", patient, outbox.ErrClosed)
}
