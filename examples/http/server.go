package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// server makes an outbox.Runner of an http.Server.
type server struct {
	http.Server
	listener net.Listener
}

// Run serves until ctx is over, and then finishes what it has begun.
func (s *server) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- s.Serve(s.listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute) // more than idempotency.Config.Timeout
	defer cancel()
	err := s.Shutdown(closing)
	if err != nil {
		err = errors.Join(err, s.Close())
	}
	<-served
	return err
}
