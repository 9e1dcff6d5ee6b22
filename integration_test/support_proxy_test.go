package integration_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

// proxy sits between clients and a server. It delays clients' data, leaves connections half open, cuts them (with
// Postgres at an exact point), and directs new ones to another server.
type proxy struct {
	url string

	delay atomic.Int64 // of clients' data
	waits atomic.Int64 // number of delays

	cutAtCommitted atomic.Bool            // cut when the server replies to COMMIT, before the client gets the reply
	cutAtSaid      atomic.Pointer[string] // cut when the client sends this, in any case, before the server gets it
	cutAtNext      atomic.Bool            // cut when the client sends anything, before the server gets it
	cutAtAnswer    atomic.Pointer[string] // cut when the server replies with this, before the client gets it
	cuts           atomic.Int64

	mu    sync.Mutex
	to    string // host and port
	conns map[net.Conn]bool

	flow   sync.RWMutex // held by freeze
	frozen atomic.Bool
}

func newProxy(t testing.TB, server string) *proxy {
	t.Helper()
	p := &proxy{conns: map[net.Conn]bool{}}
	p.lead(t, server)
	answers := p.answers
	if !strings.HasPrefix(server, "postgres") {
		answers = p.pass
	}
	p.url = startProxyTo(t, server, func() string {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.to
	}, p.says, answers)
	t.Cleanup(p.thaw)
	return p
}

// lead directs new connections to another server.
func (p *proxy) lead(t testing.TB, server string) {
	t.Helper()
	u, err := url.Parse(server)
	require.NoError(t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = u.Host
}

// cut ends all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		conn.Close()
	}
}

// freeze stops all data, and even the ends of connections, until thaw or the end of the test.
func (p *proxy) freeze() {
	p.flow.Lock()
	p.frozen.Store(true)
}

func (p *proxy) thaw() {
	if p.frozen.CompareAndSwap(true, false) {
		p.flow.Unlock()
	}
}

// cutAtCommit cuts the connection before the server gets the next COMMIT, unless pgx has prepared it.
func (p *proxy) cutAtCommit() {
	word := "commit\x00"
	p.cutAtSaid.Store(&word)
}

// passes waits while the proxy is frozen, and then forwards the data, unless the connection must be cut.
func (p *proxy) passes(to net.Conn, said []byte, cut func(said []byte) bool) bool {
	p.flow.RLock()
	defer p.flow.RUnlock()
	if cut(said) {
		p.cuts.Add(1)
		return false
	}
	_, err := to.Write(said)
	return err == nil
}

// cuttable lets cut end a connection, until the returned function is called.
func (p *proxy) cuttable(conn net.Conn) (ended func()) {
	p.mu.Lock()
	p.conns[conn] = true
	p.mu.Unlock()
	return func() {
		p.flow.RLock()
		defer p.flow.RUnlock()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, conn)
	}
}

// says forwards the client's data.
func (p *proxy) says(server, client net.Conn, over <-chan struct{}) {
	defer p.cuttable(client)()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if delay := time.Duration(p.delay.Load()); delay > 0 {
			p.waits.Add(1)
			select {
			case <-time.After(delay):
			case <-over:
				return
			}
		}
		if !p.passes(server, buf[:n], p.cutsHere) {
			return
		}
	}
}

func (p *proxy) cutsHere(said []byte) bool {
	word := p.cutAtSaid.Load()
	return p.cutAtNext.CompareAndSwap(true, false) || word != nil &&
		bytes.Contains(bytes.ToLower(said), []byte(*word)) && p.cutAtSaid.CompareAndSwap(word, nil)
}

// answers forwards whole messages of Postgres.
func (p *proxy) answers(client, server net.Conn, _ <-chan struct{}) {
	defer p.cuttable(server)()
	for {
		whole, err := serverMessage(server)
		if err != nil || !p.passes(client, whole, p.cutsThere) {
			return
		}
	}
}

func (p *proxy) cutsThere(whole []byte) bool {
	if whole[0] == 'C' && string(whole[5:]) == "COMMIT\x00" && p.cutAtCommitted.CompareAndSwap(true, false) {
		return true
	}
	word := p.cutAtAnswer.Load()
	return word != nil && (whole[0] == 'D' || whole[0] == 'C') && bytes.Contains(whole, []byte(*word)) &&
		p.cutAtAnswer.CompareAndSwap(word, nil)
}

// pass forwards the data of any server.
func (p *proxy) pass(client, server net.Conn, _ <-chan struct{}) {
	defer p.cuttable(server)()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil || !p.passes(client, buf[:n], func([]byte) bool { return false }) {
			return
		}
	}
}

// serverMessage reads one message of the server: a type byte, then a length that includes itself, then the body.
func serverMessage(server io.Reader) ([]byte, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(server, head); err != nil {
		return nil, err
	}
	whole := append(head, make([]byte, binary.BigEndian.Uint32(head[1:])-4)...)
	_, err := io.ReadFull(server, whole[5:])
	return whole, err
}

// startProxy starts a proxy between clients and the server of a database until the test ends. up forwards the client's
// data, and down the server's; when either returns, or over is closed, the connection is cut.
func startProxy(
	t testing.TB, database string, up, down func(to, from net.Conn, over <-chan struct{}),
) (proxied string) {
	t.Helper()
	u, err := url.Parse(database)
	require.NoError(t, err)
	upstream := u.Host
	return startProxyTo(t, database, func() string { return upstream }, up, down)
}

// startProxyTo is startProxy with a function that returns the server for each connection.
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

// passOn forwards everything.
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

// newSilentServer accepts connections and never replies.
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

// throughPgBouncer returns the URL of a database through a PgBouncer in transaction mode, which belongs to the test, so
// that no other test fails if it crashes. If the machine has no PgBouncer, it skips the test, except in CI.
func throughPgBouncer(t testing.TB, database string) string {
	t.Helper()
	bouncer, err := services.StartPgBouncer(t.Context(), database, services.Options{Log: io.Discard})
	if errors.Is(err, services.ErrNotInstalled) && !services.InCI() {
		t.Skip("PgBouncer is not installed")
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, bouncer.Close()) })
	return bouncer.URL()
}

// newPgBouncerHandle opens a handle of a pgx pool through PgBouncer, configured as pgx requires.
func newPgBouncerHandle(t testing.TB, database string) handle {
	t.Helper()
	h := pgxHandle(t, "pgbouncer", throughPgBouncer(t, database), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	})
	h.server = database
	return h
}

// pgbouncerHandles opens each driver on one migrated database through PgBouncer in transaction mode. Each is configured
// not to rely on prepared statements, as its documentation requires.
func pgbouncerHandles(t testing.TB) []handle {
	t.Helper()
	database := newMigratedDatabase(t)
	u := throughPgBouncer(t, database)
	exec := newSQLHandle(t, "pgx", u+"&default_query_exec_mode=exec")
	exec.name = "pgbouncer-sql-pgx"
	pq := newSQLHandle(t, "postgres", u+"&binary_parameters=yes")
	pq.name = "pgbouncer-sql-pq"
	return []handle{
		newPgBouncerHandle(t, database),
		pgxHandle(t, "pgbouncer-pgx-simple", u, func(cfg *pgxpool.Config) {
			cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		}),
		exec, pq,
	}
}

// forEachPgBouncerHandle runs a test with each of pgbouncerHandles. They share a database, so sessions of one may get
// the server connections of another.
func forEachPgBouncerHandle(t *testing.T, test func(t *testing.T, h handle)) {
	t.Helper()
	for _, h := range pgbouncerHandles(t) {
		t.Run(h.name, func(t *testing.T) { test(t, h) })
	}
}
