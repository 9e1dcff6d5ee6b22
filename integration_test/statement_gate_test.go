package integration_test

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/schema"
)

// statementGate holds statements of a pool back before they are sent.
type statementGate struct {
	mu    sync.Mutex
	rules map[string]*heldStatement
}

// heldStatement is a statement that waits, whenever it is run, until it is released.
type heldStatement struct {
	arrived chan struct{} // gets one for each run, as far as somebody receives
	open    chan struct{} // closed by release
	args    []any         // of the last run
	skip    int           // runs that pass
	begins  func()        // called first, each time; may be nil
}

// newStatementGate opens a pgx handle whose statements may be held back. What is held is released when the test ends.
func newStatementGate(t testing.TB, url string) (handle, *statementGate) {
	g := &statementGate{rules: map[string]*heldStatement{}}
	h := pgxHandle(t, "pgx", url, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = g })
	t.Cleanup(g.releaseAll)
	return h, g
}

// hold makes a statement of package schema wait from now on, after so many runs of it.
func (g *statementGate) hold(statement string, skip int) *heldStatement {
	return g.watch(statement, &heldStatement{arrived: make(chan struct{}, 100), open: make(chan struct{}), skip: skip})
}

// onRun has a function called whenever a statement is about to be sent.
func (g *statementGate) onRun(statement string, fn func()) *heldStatement {
	return g.watch(statement, &heldStatement{begins: fn})
}

func (g *statementGate) watch(statement string, s *heldStatement) *heldStatement {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rules[schema.Names{}.Render(statement)] = s
	return s
}

// release lets a statement pass, now and later.
func (g *statementGate) release(s *heldStatement) {
	g.mu.Lock()
	defer g.mu.Unlock()
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

func (g *statementGate) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	g.mu.Lock()
	s := g.rules[data.SQL]
	if s != nil {
		s.args = data.Args
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
	}
	return ctx
}

func (g *statementGate) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
