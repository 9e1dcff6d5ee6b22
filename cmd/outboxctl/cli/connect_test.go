package cli

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// TestTimeoutBoundsTheFirstStatement: while its database is down, PgBouncer accepts a login but keeps the first
// statement waiting for query_wait_timeout. A fake server that never replies takes its place.
func TestTimeoutBoundsTheFirstStatement(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			server := pgproto3.NewBackend(conn, conn)
			_, _ = server.ReceiveStartupMessage()
			server.Send(&pgproto3.AuthenticationOk{})
			server.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			_ = server.Flush()
		}
	}()
	var out, errs bytes.Buffer
	world := World{
		In: strings.NewReader(""), Out: &out, Err: &errs,
		Environ: []string{"OUTBOX_DSN=postgres://u@" + l.Addr().String() + "/x?sslmode=disable"},
		Width:   func() int { return 0 }, ErrWidth: func() int { return 0 },
	}
	ended := make(chan int, 1)
	go func() { ended <- Run(t.Context(), []string{"doctor", "--timeout", "200ms"}, world) }()
	select {
	case code := <-ended:
		if code == 0 || !strings.Contains(errs.String(), "no reply to the first statement") {
			t.Errorf("it exits with %d: %s%s", code, out.String(), errs.String())
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for longer than --timeout")
	}
}
