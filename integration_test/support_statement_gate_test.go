package integration_test

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// statementGate holds statements of a pool before they are sent.
type statementGate struct {
	mu    sync.Mutex
	rules map[string]*heldStatement
}

// heldStatement is a statement that waits at each run until it is released.
type heldStatement struct {
	arrived chan struct{} // a value for each run, dropped if nothing receives
	open    chan struct{} // closed by release
	args    []any         // arguments of the last run
	skip    int           // number of runs that pass first
	after   bool          // hold its result, not the statement
	begins  func()        // called at the start of each run; may be nil
	ended   chan struct{} // a value for each run that waited and has ended, dropped if nothing receives
}

// newStatementGate opens a pgx handle whose statements may be held. Defer releaseAll: at its end the test waits for the
// goroutines that run them.
func newStatementGate(t testing.TB, url string) (handle, *statementGate) {
	g := &statementGate{rules: map[string]*heldStatement{}}
	h := pgxHandle(t, "pgx", url, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = g })
	return h, g
}

// hold makes a statement wait from now on, after skip runs.
func (g *statementGate) hold(statement string, skip int) *heldStatement {
	return g.watch(statement, &heldStatement{
		arrived: make(chan struct{}, 100), open: make(chan struct{}), ended: make(chan struct{}, 100), skip: skip,
	})
}

// holdResult makes a statement's result wait from now on, after the server has replied.
func (g *statementGate) holdResult(statement string) *heldStatement {
	return g.watch(statement, &heldStatement{arrived: make(chan struct{}, 100), open: make(chan struct{}), after: true})
}

// onRun calls fn whenever a statement is about to be sent.
func (g *statementGate) onRun(statement string, fn func()) *heldStatement {
	return g.watch(statement, &heldStatement{begins: fn})
}

func (g *statementGate) watch(statement string, s *heldStatement) *heldStatement {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rules[sqltext.Tables{}.Render(statement)] = s
	return s
}

// release lets statements pass, now and later.
func (g *statementGate) release(statements ...*heldStatement) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range statements {
		for text, rule := range g.rules {
			if rule == s {
				delete(g.rules, text)
			}
		}
		select {
		case <-s.open:
		default:
			close(s.open)
		}
	}
}

func (g *statementGate) releaseAll() {
	g.mu.Lock()
	rules := g.rules
	g.rules = map[string]*heldStatement{}
	g.mu.Unlock()
	for _, s := range rules {
		if s.open != nil {
			close(s.open)
		}
	}
}

func (g *statementGate) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData,
) context.Context {
	g.mu.Lock()
	s := g.rules[data.SQL]
	if s != nil {
		s.args = data.Args
		if s.after {
			g.mu.Unlock()
			return context.WithValue(ctx, heldResult{}, s)
		}
		if s.skip--; s.open == nil || s.skip >= 0 {
			begins := s.begins
			g.mu.Unlock()
			if begins != nil {
				begins()
			}
			return ctx
		}
	}
	g.mu.Unlock()
	if s != nil {
		select {
		case s.arrived <- struct{}{}:
		default:
		}
		<-s.open
		return context.WithValue(ctx, waited{}, s)
	}
	return ctx
}

type waited struct{}

// TraceBatchStart makes a batch wait for each of its held statements.
func (g *statementGate) TraceBatchStart(
	ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData,
) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		ctx = g.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: q.SQL, Args: q.Arguments})
	}
	return ctx
}

func (g *statementGate) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (g *statementGate) TraceBatchEnd(ctx context.Context, conn *pgx.Conn, _ pgx.TraceBatchEndData) {
	g.TraceQueryEnd(ctx, conn, pgx.TraceQueryEndData{})
}

type heldResult struct{}

func (g *statementGate) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if s, ok := ctx.Value(waited{}).(*heldStatement); ok {
		select {
		case s.ended <- struct{}{}:
		default:
		}
	}
	if s, ok := ctx.Value(heldResult{}).(*heldStatement); ok {
		select {
		case s.arrived <- struct{}{}:
		default:
		}
		<-s.open
	}
}

// arrives waits for a run of one of the statements.
func (g *statementGate) arrives(t testing.TB, what string, statements ...*heldStatement) {
	t.Helper()
	for deadline := time.After(patience); ; {
		for _, s := range statements {
			select {
			case <-s.arrived:
				return
			default:
			}
		}
		select {
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatalf("did not happen within %s: %s", patience, what)
		}
	}
}

// readStatements are the statements of package schema that read the outbox.
var readStatements = []string{
	sqltext.Fetch, sqltext.FetchMore, sqltext.FetchApart, sqltext.FetchMoreApart, sqltext.FetchRange,
	sqltext.FetchRangeMore,
}

// holdReads makes all reads wait from now on.
func (g *statementGate) holdReads() (reads []*heldStatement) {
	for _, read := range readStatements {
		reads = append(reads, g.hold(read, 0))
	}
	return reads
}

// holdAnswers makes the results of reads wait.
func (g *statementGate) holdAnswers() (reads []*heldStatement) {
	for _, read := range readStatements {
		reads = append(reads, g.holdResult(read))
	}
	return reads
}

// holdSettling makes the settling of published messages wait, one by one or as a range.
func (g *statementGate) holdSettling() []*heldStatement {
	return append(g.holdSpans(), g.hold(sqltext.SettlePublished, 0), g.hold(sqltext.SettlePublishedDelete, 0))
}

func (g *statementGate) holdSpans() []*heldStatement {
	return []*heldStatement{g.hold(sqltext.SettleSpan, 0), g.hold(sqltext.SettleSpanDelete, 0)}
}

// gate sits between a pool and its server. When shut, it passes nothing but keeps the connections, like a stopped
// process.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while the gate is open
}

// newGatedHandle opens a pgx handle on the database of another handle, connected the same way, behind a gate that opens
// when the test ends.
func newGatedHandle(t testing.TB, like handle) (handle, *gate) {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	h := pgxHandle(t, "gated", like.url, func(cfg *pgxpool.Config) {
		if like.name == "pgbouncer" {
			cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		}
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if err := g.pass(ctx.Done()); err != nil {
				return nil, err
			}
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &gatedConn{Conn: conn, gate: g, over: make(chan struct{})}, nil
		}
	})
	t.Cleanup(g.reopen)
	return h, g
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
		g.open = make(chan struct{})
	default:
	}
}

func (g *gate) reopen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}

func (g *gate) pass(over <-chan struct{}) error {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-over:
		return os.ErrDeadlineExceeded
	}
}

type gatedConn struct {
	net.Conn
	gate *gate
	mu   sync.Mutex
	over chan struct{} // closed by Close, or by a deadline in the past, with which pgx cancels; then replaced
}

func (c *gatedConn) pass() error {
	c.mu.Lock()
	over := c.over
	c.mu.Unlock()
	return c.gate.pass(over)
}

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if passErr := c.pass(); passErr != nil && err == nil {
		return 0, passErr
	}
	return n, err
}

func (c *gatedConn) Write(p []byte) (int, error) {
	if err := c.pass(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *gatedConn) SetDeadline(t time.Time) error {
	c.expire(t)
	return c.Conn.SetDeadline(t)
}

func (c *gatedConn) SetReadDeadline(t time.Time) error {
	c.expire(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *gatedConn) SetWriteDeadline(t time.Time) error {
	c.expire(t)
	return c.Conn.SetWriteDeadline(t)
}

func (c *gatedConn) expire(deadline time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	over := false
	select {
	case <-c.over:
		over = true
	default:
	}
	switch past := !deadline.IsZero() && deadline.Before(time.Now()); {
	case past && !over:
		close(c.over)
	case !past && over:
		c.over = make(chan struct{})
	}
}

func (c *gatedConn) Close() error {
	c.expire(time.Unix(1, 0))
	return c.Conn.Close()
}
