package fleet

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// seat is one connection's claim to a slot, from before it is dialled to the end of its socket.
type seat struct {
	budget   *budget
	source   *source
	patience time.Duration // for a slot

	mu      sync.Mutex
	sockets int  // open sockets; a second one cancels a statement
	suspect bool // it has one of the slots of budget.suspects

	// Guarded by budget.mu.
	opened  time.Time // when the server let it in
	leaving bool      // it is being closed for a caller that waits
}

const seatKey = "github.com/millrace-go/watermill-outbox/fleet"

func seatOf(conn *pgx.Conn) *seat {
	s, _ := conn.PgConn().CustomData()[seatKey].(*seat)
	return s
}

// dialer takes a slot before the connection is dialled. A request to cancel a statement of an open connection needs
// none: if it had to wait for one, connections being closed would wait for each other.
func (s *seat) dialer(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		s.mu.Lock()
		cancels := s.sockets > 0
		s.mu.Unlock()
		if cancels {
			return dial(ctx, network, addr)
		}
		if err := s.take(ctx); err != nil {
			return nil, err
		}
		conn, err := dial(ctx, network, addr)
		if err != nil {
			s.give()
			return nil, err
		}
		s.mu.Lock()
		s.sockets++
		s.mu.Unlock()
		return &socket{Conn: conn, seat: s}, nil
	}
}

func (s *seat) take(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	b := s.budget
	b.mu.Lock()
	failing := s.source.failing
	b.mu.Unlock()
	if failing {
		select {
		case b.suspects <- struct{}{}:
			s.mu.Lock()
			s.suspect = true
			s.mu.Unlock()
		case <-ctx.Done():
			return fmt.Errorf("%w for %q: earlier attempts to connect failed, and %d are in progress: %w",
				errNoPlace, s.source.name, cap(b.suspects), ctx.Err())
		}
	}
	if err := b.take(ctx, s.source); err != nil {
		s.acquit()
		return err
	}
	return nil
}

// acquit releases the slot among the suspects.
func (s *seat) acquit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspect {
		s.suspect = false
		<-s.budget.suspects
	}
}

func (s *seat) connected(conn *pgconn.PgConn) {
	conn.CustomData()[seatKey] = s
	s.acquit()
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	s.opened = time.Now()
}

// give is called when the socket is closed, or will not be opened.
func (s *seat) give() {
	s.acquit()
	s.budget.give(s)
}

// socket releases the slot when it is closed.
type socket struct {
	net.Conn
	seat *seat
	once sync.Once
	err  error
}

// Close waits until the server has closed its end, so that a slot is free only when the server's is as well.
func (s *socket) Close() error {
	s.once.Do(func() {
		defer s.seat.give()
		defer func() {
			s.seat.mu.Lock()
			s.seat.sockets--
			s.seat.mu.Unlock()
		}()
		if half, ok := s.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
			_ = s.SetReadDeadline(time.Now().Add(hangUp))
			_, _ = io.Copy(io.Discard, s.Conn)
		}
		s.err = s.Conn.Close()
	})
	return s.err
}

// shut closes an idle connection.
func shut(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), hangUp)
	defer cancel()
	_ = conn.Close(ctx)
}
