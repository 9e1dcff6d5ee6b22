package forwarder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/testing/modeldb"
)

const (
	// roundTrip is the duration of a statement.
	roundTrip = time.Millisecond
	// slowAnswer is the duration of a slow response: longer than the interval between two renewals of a lease.
	slowAnswer = leaseOfBubbles * 3 / 5
	// tooLate is the delay between the moment when a caller gave up on a statement and its execution.
	tooLate = 3 * time.Second
)

var (
	errBroken = errors.New("the connection broke")
	errLater  = errors.New("the server continues")
)

// faultKind is the way in which an operation fails.
type faultKind int

const (
	refused faultKind = iota + 1 // not executed
	lost                         // executed, but the response is lost
	silent                       // not executed, and no response comes
	late                         // executed after its caller gave up
	slow                         // executed, but the response is slow
	faultKinds
)

func (k faultKind) String() string {
	return [...]string{"", "refused", "lost", "silent", "late", "slow"}[k]
}

// fault hits the nth operation of this name in one forwarder's process; 0 = each of them.
type fault struct {
	forwarder int
	operation string
	nth       int
	kind      faultKind
}

func (f fault) String() string {
	return fmt.Sprintf("%s/%d/%d/%s", f.operation, f.nth, f.forwarder, f.kind)
}

// bubblePool is the pool of one forwarder. One of its operations may fail, and its network may be down.
type bubblePool struct {
	t      *testing.T
	server *bubbleServer
	number int
	fault  fault

	mu              sync.Mutex
	away            bool
	unanswered      string         // an operation that is executed but gets no response
	owner           string         // the last forwarder to join
	recallRequested map[string]int // number of operations by name
	total           int
	hit             bool // the fault occurred
	stragglers      sync.WaitGroup
}

var _ drive.Pool = (*bubblePool)(nil)

func newBubblePool(t *testing.T, server *bubbleServer, number int, f fault) *bubblePool {
	return &bubblePool{t: t, server: server, number: number, fault: f, recallRequested: map[string]int{}}
}

// next counts an operation and returns its fault, if any.
func (p *bubblePool) next(name string) faultKind {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recallRequested[name]++
	p.total++
	switch f := p.fault; {
	case p.away:
		return silent
	case f.forwarder == p.number && f.operation == name && (f.nth == 0 || f.nth == p.recallRequested[name]):
		p.hit = true
		return f.kind
	case p.unanswered == name:
		return lost
	}
	return 0
}

func (p *bubblePool) setAway(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
}

func (p *bubblePool) joins(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owner = id
}

func (p *bubblePool) hasJoined() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.owner != ""
}

// owns reports whether the pool's forwarder owns a lane.
func (p *bubblePool) owns(lane int16) bool {
	p.mu.Lock()
	owner := p.owner
	p.mu.Unlock()
	return p.server.owns(owner, lane)
}

func (p *bubblePool) setUnanswered(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unanswered = name
}

func (p *bubblePool) operations() (asked map[string]int, total int, hit bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.recallRequested, p.total, p.hit
}

// ask performs one operation.
func (p *bubblePool) ask(
	ctx context.Context, name string, do func(context.Context) (bubbleAnswer, error),
) (none bubbleAnswer, _ error) {
	switch p.next(name) {
	case refused:
		return none, errBroken
	case lost:
		if _, err := do(ctx); err != nil {
			return none, err
		}
		return none, errBroken
	case silent:
		<-ctx.Done()
		return none, ctx.Err()
	case late:
		<-ctx.Done()
		p.stragglers.Go(func() {
			time.Sleep(tooLate)
			_, _ = do(context.Background())
		})
		return none, fmt.Errorf("%w: %w", errLater, ctx.Err())
	case slow:
		a, err := do(ctx)
		if !core.Pause(ctx, slowAnswer) {
			return none, ctx.Err()
		}
		return a, err
	}
	if !core.Pause(ctx, roundTrip) {
		return none, ctx.Err()
	}
	return do(ctx)
}

func (p *bubblePool) statement(ctx context.Context, query string, args []any) (bubbleAnswer, error) {
	s, known := bubbleStatements[query]
	if !known {
		p.t.Errorf("unknown statement: %s", oneLine(query))
		return bubbleAnswer{}, errBroken
	}
	return p.ask(ctx, s.name, func(ctx context.Context) (bubbleAnswer, error) { return p.server.run(ctx, s.do, args) })
}

func (p *bubblePool) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	a, err := p.statement(ctx, query, args)
	return a.touched, err
}

func (p *bubblePool) Query(ctx context.Context, query string, args ...any) (drive.Rows, error) {
	a, err := p.statement(ctx, query, args)
	return &bubbleRows{list: a.rows}, err
}

func (p *bubblePool) Name() string              { return "bubble" }
func (p *bubblePool) ID() any                   { return p }
func (p *bubblePool) PlanCached() drive.Querier { return p }
func (p *bubblePool) Reset()                    {}

func (p *bubblePool) Dedicated(context.Context) (drive.Querier, func(), error) {
	return p, func() {}, nil
}
func (p *bubblePool) ReaderConn(context.Context) (drive.Querier, func(), error) {
	return p, func() {}, nil
}

// Listen reports writers' commits until the connection breaks.
func (p *bubblePool) Listen(ctx context.Context, _ string, fn func(string)) error {
	c := make(chan struct{}, 1)
	switch p.next("listen") {
	case refused, lost:
		return errBroken
	case silent, late:
		c = nil
	}
	s := p.server
	s.mu.Lock()
	s.listeners[c] = c != nil
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.listeners, c)
	}()
	fn("")
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c:
			fn(`another {"outbox":true}`)
		}
	}
}

// Begin begins the transaction in which a forwarder joins, or expired ones are removed.
func (p *bubblePool) Begin(ctx context.Context, _ drive.TxOptions) (drive.OwnTx, error) {
	if _, err := p.ask(ctx, "begin", func(context.Context) (a bubbleAnswer, _ error) { return a, nil }); err != nil {
		return nil, err
	}
	return &bubbleTx{pool: p}, nil
}

// bubbleTx is a writer's transaction, or one that holds the lock for joining.
type bubbleTx struct {
	drive.OwnTx
	pool  *bubblePool
	id    string // of the joining forwarder
	lease time.Duration
	late  bool        // its commit is in flight, even if the caller gives up
	tx    *modeldb.Tx // of a writer
}

var joinStatements = func() map[string]string {
	all := map[string]string{}
	for name, text := range map[string]string{
		"lock to join": sqltext.LockToJoin, "announce": sqltext.AnnounceForwarder, "ahead": sqltext.ForwardersAhead,
		"create lanes": sqltext.CreateLanes, "join": sqltext.JoinForwarders, "forget": sqltext.ForgetForwarders,
	} {
		all[sqltext.Tables{}.WithDefaults().Render(text)] = name
	}
	return all
}()

func (t *bubbleTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	if query == insertStatement {
		return t.insert(ctx, args)
	}
	name, known := joinStatements[query]
	if !known {
		t.pool.t.Errorf("unknown statement in a transaction: %s", oneLine(query))
		return 0, errBroken
	}
	_, err := t.pool.ask(ctx, name, func(ctx context.Context) (bubbleAnswer, error) {
		switch {
		case ctx == context.Background(): // a late statement finds the transaction ended
			return bubbleAnswer{}, nil
		case name == "join":
			t.id, t.lease = args[0].(string), seconds(args[1].(float64))
			t.pool.joins(t.id)
			return bubbleAnswer{}, nil
		case name != "lock to join":
			return bubbleAnswer{}, nil
		}
		return t.pool.server.run(ctx, t.lock, nil)
	})
	return 0, err
}

func (t *bubbleTx) Query(ctx context.Context, query string, args ...any) (drive.Rows, error) {
	_, err := t.Exec(ctx, query, args...)
	return &bubbleRows{}, err
}

func (t *bubbleTx) lock(s *bubbleServer, _ []any) (a bubbleAnswer, blocked bool) {
	if s.joining != nil && s.joining != t {
		return a, true
	}
	s.joining = t
	return a, false
}

// Commit applies the transaction's writes.
func (t *bubbleTx) Commit(ctx context.Context, _, _ []drive.Statement) error {
	name := "commit"
	if t.tx != nil {
		name = "commit of a writer"
	}
	_, err := t.pool.ask(ctx, name, func(ctx context.Context) (bubbleAnswer, error) {
		return t.pool.server.run(ctx, t.commit, nil)
	})
	t.late = errors.Is(err, errLater)
	if err != nil {
		err = fmt.Errorf("%w: %w", drive.ErrCommitUnknown, err)
	}
	return err
}

func (t *bubbleTx) commit(s *bubbleServer, _ []any) (a bubbleAnswer, _ bool) {
	if t.tx != nil {
		t.tx.End(true)
		s.released()
		return a, false
	}
	if s.joining != t {
		return a, false // a crash or the transaction's end came first
	}
	if t.id != "" {
		s.db.Register(t.id)
		s.leases[t.id] = time.Now().Add(t.lease)
	}
	s.joining = nil
	s.released()
	return a, false
}

// Rollback releases the lock, unless a commit is in flight.
func (t *bubbleTx) Rollback(context.Context) error {
	s := t.pool.server
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.late:
	case t.tx != nil:
		t.tx.End(false)
		s.released()
	case s.joining == t:
		s.joining = nil
		s.released()
	}
	return nil
}
