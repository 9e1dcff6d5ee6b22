package integration_test

import (
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// startProxy stands between clients and the server of a database until the test ends. up passes on what a client says,
// and down what the server answers; when either returns, or over is closed, the connection is cut.
func startProxy(
	t testing.TB, database string, up, down func(to, from net.Conn, over <-chan struct{}),
) (proxied string) {
	t.Helper()
	u, err := url.Parse(database)
	require.NoError(t, err)
	upstream := u.Host
	return startProxyTo(t, database, func() string { return upstream }, up, down)
}

// startProxyTo is startProxy to a server that is asked for at each connection.
func startProxyTo(
	t testing.TB, database string, upstream func() string, up, down func(to, from net.Conn, over <-chan struct{}),
) (proxied string) {
	t.Helper()
	u, err := url.Parse(database)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	u.Host = listener.Addr().String()
	var running sync.WaitGroup
	over := make(chan struct{})
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", upstream())
			if err != nil {
				client.Close()
				continue
			}
			cut := sync.OnceFunc(func() { client.Close(); server.Close() })
			running.Go(func() { defer cut(); up(server, client, over) })
			running.Go(func() { defer cut(); down(client, server, over) })
			running.Go(func() { <-over; cut() })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		close(over)
		running.Wait()
	})
	return u.String()
}

// passOn passes on everything.
func passOn(to, from net.Conn, _ <-chan struct{}) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
