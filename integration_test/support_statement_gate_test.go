package integration_test

import (
	"context"
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
func (g *statementGate) onRun(statement string, fn func()) {
	g.watch(statement, &heldStatement{begins: fn})
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

// holdSettling makes the settling of published messages wait, one by one or as a range.
func (g *statementGate) holdSettling() []*heldStatement {
	return append(g.holdSpans(), g.hold(sqltext.SettlePublished, 0), g.hold(sqltext.SettlePublishedDelete, 0))
}

func (g *statementGate) holdSpans() []*heldStatement {
	return []*heldStatement{g.hold(sqltext.SettleSpan, 0), g.hold(sqltext.SettleSpanDelete, 0)}
}
