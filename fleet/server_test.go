package fleet_test

import (
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// server implements enough of Postgres for a pool to connect and ping. It counts its connections.
type server struct {
	listener net.Listener

	mu         sync.Mutex
	silent     chan struct{} // if not nil, logins wait until it is closed
	hang       chan struct{} // if not nil, replies wait until it is closed
	refuse     bool          // refuse all logins
	open, peak int
	attempts   int
	conns      map[net.Conn]bool
	running    sync.WaitGroup
}

func newServer(t testing.TB) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{listener: l, conns: map[net.Conn]bool{}}
	s.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.running.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		s.mu.Lock()
		for c := range s.conns {
			c.Close()
		}
		s.mu.Unlock()
		s.running.Wait()
	})
	return s
}

func (s *server) dsn(database, more string) string {
	return fmt.Sprintf("postgres://me:hush-hush@%s/%s?sslmode=disable%s", s.listener.Addr(), database, more)
}

func (s *server) serve(c net.Conn) {
	s.mu.Lock()
	s.attempts++
	s.open++
	s.peak = max(s.peak, s.open)
	s.conns[c] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.open--
		delete(s.conns, c)
		s.mu.Unlock()
		c.Close()
	}()
	b := pgproto3.NewBackend(c, c)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	s.mu.Lock()
	silent, refuse := s.silent, s.refuse
	s.mu.Unlock()
	if silent != nil {
		<-silent
	}
	if refuse {
		b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "3D000", Message: "no such database"})
		_ = b.Flush()
		return
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for b.Flush() == nil {
		msg, err := b.Receive()
		if err != nil {
			return
		}
		if _, ok := msg.(*pgproto3.Terminate); ok {
			return
		}
		s.mu.Lock()
		hang := s.hang
		s.mu.Unlock()
		if hang != nil {
			<-hang
		}
		b.Send(&pgproto3.EmptyQueryResponse{})
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	}
}

func (s *server) counts() (open, peak, attempts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open, s.peak, s.attempts
}
