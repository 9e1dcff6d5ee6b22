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

// connSlot is the slot of one connection, from before it is dialled until its socket is closed.
type connSlot struct {
	budget   *budget
	source   *source
	patience time.Duration // how long to wait for a slot

	mu      sync.Mutex
	sockets int  // open sockets; the second cancels a statement
	suspect bool // has one of the slots of budget.suspects

	// Guarded by budget.mu.
	opened  time.Time // when the server accepted the connection
	leaving bool      // being closed for a waiting caller
}

const slotKey = "github.com/millrace-go/watermill-outbox/fleet"

func slotOf(conn *pgx.Conn) *connSlot {
	s, _ := conn.PgConn().CustomData()[slotKey].(*connSlot)
	return s
}

// dialer takes a slot before the connection is dialled. A request to cancel a statement of an open connection needs no
// slot: otherwise connections that are being closed would wait for each other.
func (s *connSlot) dialer(dial pgconn.DialFunc) pgconn.DialFunc {
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
		return &socket{Conn: conn, slot: s}, nil
	}
}

func (s *connSlot) take(ctx context.Context) error {
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
				errNoSlot, s.source.name, cap(b.suspects), ctx.Err())
		}
	}
	if err := b.take(ctx, s.source); err != nil {
		s.leaveSuspects()
		return err
	}
	return nil
}

// leaveSuspects releases the slot among the suspects.
func (s *connSlot) leaveSuspects() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspect {
		s.suspect = false
		<-s.budget.suspects
	}
}

func (s *connSlot) connected(conn *pgconn.PgConn) {
	conn.CustomData()[slotKey] = s
	s.leaveSuspects()
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	s.opened = time.Now()
}

// give is called when the socket is closed, or not going to be opened.
func (s *connSlot) give() {
	s.leaveSuspects()
	s.budget.give(s)
}

// socket releases the slot when it is closed.
type socket struct {
	net.Conn
	slot *connSlot
	once sync.Once
	err  error
}

// Close waits until the server has closed its end, so that a slot is free only when the server has freed the connection
// too.
func (s *socket) Close() error {
	s.once.Do(func() {
		defer s.slot.give()
		defer func() {
			s.slot.mu.Lock()
			s.slot.sockets--
			s.slot.mu.Unlock()
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
