package integration_test

import (
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// switchProxy stands before a server that fails: it cuts connections, lets them stand half open, and leads new ones to
// another server.
type switchProxy struct {
	url string

	mu    sync.Mutex
	to    string // host and port
	conns map[net.Conn]bool

	flow sync.RWMutex // held by freeze
}

func newSwitchProxy(t testing.TB, database string) *switchProxy {
	t.Helper()
	p := &switchProxy{conns: map[net.Conn]bool{}}
	p.lead(t, database)
	p.url = startProxyTo(t, database, func() string {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.to
	}, p.pass, p.pass)
	return p
}

// lead has connections that begin from now on lead to the server of a database.
func (p *switchProxy) lead(t testing.TB, database string) {
	t.Helper()
	u, err := url.Parse(database)
	require.NoError(t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = u.Host
}

// cut ends all connections that there are.
func (p *switchProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		conn.Close()
	}
}

// freeze lets connections stand, and nothing through, not even that one has ended, until thaw.
func (p *switchProxy) freeze() { p.flow.Lock() }
func (p *switchProxy) thaw()   { p.flow.Unlock() }

func (p *switchProxy) pass(to, from net.Conn, _ <-chan struct{}) {
	p.mu.Lock()
	p.conns[from] = true
	p.mu.Unlock()
	defer func() {
		p.flow.RLock()
		defer p.flow.RUnlock()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, from)
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		p.flow.RLock()
		_, err = to.Write(buf[:n])
		p.flow.RUnlock()
		if err != nil {
			return
		}
	}
}
