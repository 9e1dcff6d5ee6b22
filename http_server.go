package outbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// httpCloseTimeout is how long HTTPServer waits for requests in flight: less than two thirds of defaultCloseTimeout.
const httpCloseTimeout = 15 * time.Second

type httpServer struct {
	server   *http.Server
	listener net.Listener
}

var _ Runner = httpServer{}

// HTTPServer makes a Runner of an http.Server. It serves on the listener until its context ends, then waits up to 15 s
// for requests in flight, and returns an error if it had to cut any off. A nil listener listens on Server.Addr. It
// serves TLS if Server.TLSConfig has certificates. Pass it to Run first.
func HTTPServer(server *http.Server, listener net.Listener) Runner {
	return httpServer{server, listener}
}

func (s httpServer) Run(ctx context.Context) error {
	if s.server == nil {
		return errors.New("outbox: the server of HTTPServer is nil")
	}
	served := make(chan error, 1)
	go func() { served <- s.serve() }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), httpCloseTimeout)
	defer cancel()
	err := s.server.Shutdown(closing)
	if err != nil {
		err = errors.Join(fmt.Errorf("outbox: HTTP requests were cut off after %s: %w", httpCloseTimeout, err),
			s.server.Close())
	}
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

func (s httpServer) serve() error {
	c := s.server.TLSConfig
	secure := c != nil && (len(c.Certificates) > 0 || c.GetCertificate != nil || c.GetConfigForClient != nil)
	switch {
	case s.listener == nil && secure:
		return s.server.ListenAndServeTLS("", "")
	case s.listener == nil:
		return s.server.ListenAndServe()
	case secure:
		return s.server.ServeTLS(s.listener, "", "")
	}
	return s.server.Serve(s.listener)
}

// readyTimeout bounds how long a probe waits for the database.
const readyTimeout = 2 * time.Second

// Ready responds to a readiness probe: 200 if the database responds within 2 s, else 503. A liveness probe needs no
// query, because a restart would not cure an outage.
func Ready(db *DB) http.Handler {
	own := (*core.DB)(db)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := own.Check()
		if err == nil {
			ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
			defer cancel()
			_, err = own.Exec(ctx, "SELECT 1")
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte("unavailable\n"))
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
}
