package demo

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin/ui"
)

// page serves the page of package admin while the day lasts. It allows no acts.
type page struct {
	handler  *ui.Handler
	listener net.Listener
}

func newPage(db *outbox.DB) (*page, error) {
	handler, err := ui.New(db, ui.Config{Title: "Bad day", SampleInterval: time.Second}, nil)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the page: %w", err)
	}
	return &page{handler, listener}, nil
}

func (p *page) url() string { return fmt.Sprintf("http://%s/outbox/", p.listener.Addr()) }

// serve serves it until ctx ends.
func (p *page) serve(ctx context.Context) {
	mux := http.NewServeMux()
	mux.Handle("/outbox/", p.handler)
	server := http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	var sampling sync.WaitGroup
	sampling.Go(func() { _ = p.handler.Run(ctx) })
	_ = server.Serve(p.listener) // it ends when it is closed
	sampling.Wait()
}
