package integration_test

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// slowProxy passes on what the client says after a delay.
type slowProxy struct {
	url   string
	delay atomic.Int64
	waits atomic.Int64 // what has been kept waiting so far
}

func newSlowProxy(t testing.TB, database string, delay time.Duration) *slowProxy {
	t.Helper()
	p := &slowProxy{}
	p.delay.Store(int64(delay))
	p.url = startProxy(t, database, p.toServer, passOn)
	return p
}

func (p *slowProxy) toServer(server, client net.Conn, over <-chan struct{}) {
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		delay := time.Duration(p.delay.Load())
		if delay > 0 {
			p.waits.Add(1)
		}
		select {
		case <-time.After(delay):
		case <-over:
			return
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// newSilentServer takes connections and never says anything.
func newSilentServer(t testing.TB) (dsn string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
		}
	})
	t.Cleanup(func() {
		listener.Close()
		running.Wait()
		for _, conn := range conns {
			conn.Close()
		}
	})
	return fmt.Sprintf("postgres://me:secret@%s/nowhere?sslmode=disable&connect_timeout=2", listener.Addr())
}
