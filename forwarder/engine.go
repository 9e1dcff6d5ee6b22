package forwarder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/schema"
)

// send hands one message to whoever it is for and returns when that has answered. ctx ends when the
// forwarder gives up waiting; recalled is closed when it wants the message back, unless somebody has received it.
type send func(ctx context.Context, recalled <-chan struct{}, d core.Delivery, msg *message.Message) error

// engine reads the outbox, hands each message to send, and settles what became of it. Forwarder and
// Subscriber are its two faces.
//
// Its goroutines: one reads (and is the only one that does), one settles, one keeps the lease, one looks
// after publishes that take too long, one sweeps and cleans up, one reports, and up to Concurrency publish. All state
// they share is the board, under mu. The user's code is never called under mu: the publisher and Classify are by the
// workers, the logger and the observer by the reporter.
type engine struct {
	db   *outbox.DB
	cfg  Config
	send send
	// classify is the verdict on an error of send.
	classify   judge
	recallable bool // messages may wait for somebody to receive them
	reports    *reporter
	logger     watermill.LoggerAdapter // of reports
	obs        observers
	owner      string // the id of this run
	sql        statements

	mu         sync.Mutex
	board      *board
	workers    int           // publishing goroutines that count against Concurrency
	stuck      int           // goroutines whose publish timed out and has not returned
	pace       time.Duration // moving average of how long a publish takes
	calls      map[*call]struct{}
	leaseUntil time.Time // no publish starts after it
	stopping   bool
	owned      int  // lanes, by the last count
	draining   bool // some lanes are to be given back
	drains     int  // calls of drain that wait
	joined     bool // nobody reads our topics otherwise; of the lease goroutine, as what follows
	waits      waitReport
	shortfalls int // renewals in a row that found lanes missing to our share
	reader     reader
	loading    map[int16]*loading // lanes that were taken and whose held keys are not all loaded yet
	share      int                // lanes that are ours to have, by the last count; -1 before the first
	idle       int64              // counts reads that found everything done
	idleCond   *sync.Cond

	dirty     atomic.Bool   // there is something new to read
	readNow   chan struct{} // capacity 1: look whether to read
	settleNow chan struct{} // capacity 1: there are results
	leaseNow  chan struct{} // capacity 1: lanes can be given back
	running   chan struct{} // closed when lanes are owned

	publishing sync.WaitGroup
	values     context.Context // of the messages' contexts
	gaveUp     atomic.Bool     // nobody waits for publishes any more
}

// statements are the statements of the engine with the table names filled in.
type statements struct {
	fetch, fetchMore, beginLife, writers, loadHeads, sweep, clean, pauseTopics        string
	settlePublished, settleUnlocked, settleFailed                                     string
	lock, announce, ahead, join, createLanes, heartbeat, members, lanes, take, retake string
	release, leave, forget                                                            string
}

func newEngine(base context.Context, db *outbox.DB, cfg Config, s send, j judge, logger watermill.LoggerAdapter) (*engine, error) {
	if err := db.Check(); err != nil {
		return nil, err
	}
	cfg.Tables = sqltext.Tables(db.Tables())
	cfg.setDefaults()
	if err := cfg.validate("Config"); err != nil {
		return nil, err
	}
	reports := newReporter((*core.DB)(db).Logger(logger).With(watermill.LogFields{"scope": cfg.Scope, "forwarder": cfg.Name}))
	logger = reportedLogger{reports.logger, reports}
	e := &engine{
		db: db, cfg: cfg, send: s, classify: j, reports: reports, logger: logger,
		obs:       observers{db.Name(), cfg.Scope, cfg.Observer, logger, reports},
		owner:     uuid.NewString(),
		calls:     map[*call]struct{}{},
		share:     -1,
		loading:   map[int16]*loading{},
		readNow:   make(chan struct{}, 1),
		settleNow: make(chan struct{}, 1),
		leaseNow:  make(chan struct{}, 1),
		running:   make(chan struct{}),
	}
	e.idleCond = sync.NewCond(&e.mu)
	e.board = newBoard(&e.cfg)
	e.board.observe = e.obs
	e.reader = reader{rowBytes: guessedRowBytes, width: laneCount, span: firstSpan}
	e.values = context.WithoutCancel(base)
	t := cfg.Tables
	e.sql = statements{
		fetch: t.Render(schema.Fetch), fetchMore: t.Render(schema.FetchMore),
		writers: t.Render(schema.Writers), loadHeads: t.Render(schema.LoadHeads), sweep: t.Render(schema.Sweep),
		settlePublished: t.Render(schema.SettlePublished), settleUnlocked: t.Render(schema.SettleUnlocked),
		settleFailed: t.Render(schema.SettleFailed),
		clean:        t.Render(schema.CleanPublished), beginLife: t.Render(schema.BeginLife), pauseTopics: t.Render(schema.PauseTopics),
		lock: t.Render(schema.LockForwarders), announce: t.Render(schema.AnnounceForwarder), ahead: t.Render(schema.ForwardersAhead),
		retake: t.Render(schema.RetakeLanes), forget: t.Render(schema.ForgetForwarders),
		join: t.Render(schema.JoinForwarders), createLanes: t.Render(schema.CreateLanes),
		heartbeat: t.Render(schema.Heartbeat), members: t.Render(schema.Members), lanes: t.Render(schema.Lanes),
		take: t.Render(schema.TakeLanes), release: t.Render(schema.ReleaseLanes), leave: t.Render(schema.LeaveForwarders),
	}
	if cfg.Retention == -1 {
		e.sql.settlePublished, e.sql.settleUnlocked = t.Render(schema.SettlePublishedDelete), t.Render(schema.SettleUnlockedDelete)
	}
	return e, nil
}

// prepare checks the schema and announces the forwarder. Nothing has to be undone if it fails.
func (e *engine) prepare(ctx context.Context) error {
	checkCtx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	if err := schema.Check(checkCtx, e.db); err != nil {
		return err
	}
	return e.register(ctx)
}

// run works until ctx is over, then stops in order: nothing new is read or sent, what is under way is
// waited for and settled, and the lanes are given back.
func (e *engine) run(ctx context.Context) error {
	lease, closeLease, err := e.db.Dedicated(ctx)
	if err != nil {
		return fmt.Errorf("open a connection for the lease: %w", err)
	}
	defer closeLease()
	stopWake := e.db.OnCommit(e.cfg.Tables.OutboxName(), e.wake)
	defer stopWake()

	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	settling, stopSettling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSettling()

	var front, back, settler sync.WaitGroup
	front.Go(func() { e.read(ctx) })
	front.Go(func() { e.maintain(ctx) })
	if !e.cfg.DisableListen {
		front.Go(func() { e.listen(ctx) })
	}
	back.Go(func() { e.keepLease(background, lease) })
	back.Go(func() { e.watchCalls(background) })
	settler.Go(func() { e.settle(settling) })

	<-ctx.Done()
	e.mu.Lock()
	e.stopping = true
	e.idleCond.Broadcast()
	e.mu.Unlock()
	front.Wait()
	signal(e.leaseNow)
	left := e.waitForPublishes()
	stopSettling()
	settler.Wait() // it settles what is left before it returns
	stopBackground()
	back.Wait()
	e.leave(lease)
	if left > 0 {
		e.logger.Error("Stopped with publishes under way; they will be sent again",
			context.DeadlineExceeded, watermill.LogFields{"messages": left})
	}
	return nil
}

// waitForPublishes returns how many publishes did not end in time.
func (e *engine) waitForPublishes() int {
	done := make(chan struct{})
	go func() {
		e.publishing.Wait()
		close(done)
	}()
	timer := time.NewTimer(e.cfg.CloseTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return 0
	case <-timer.C:
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gaveUp.Store(true)
	for c := range e.calls {
		c.end(context.Canceled)
	}
	return len(e.calls)
}

// wake says that there is something new to read.
func (e *engine) wake() {
	e.dirty.Store(true)
	signal(e.readNow)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// drain waits until a read that began after the call has found nothing left to do.
func (e *engine) drain(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.idleCond.Broadcast()
	})
	defer stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drains++
	defer func() { e.drains-- }()
	// The read that is under way may have begun before the call.
	for target := e.idle + 2; e.idle < target; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if e.stopping {
			return ErrClosed
		}
		e.wake()
		e.idleCond.Wait()
	}
	return nil
}

// errorLog logs the first of a row of errors as an error and the others at debug, and when they end.
type errorLog struct {
	failing bool
	logger  watermill.LoggerAdapter
	what    string
}

func (l *errorLog) report(err error) {
	switch {
	case err == nil && l.failing:
		l.failing = false
		l.logger.Info(l.what+" works again", nil)
	case err == nil || errors.Is(err, context.Canceled):
	case l.failing:
		l.logger.Debug(l.what+" still fails", watermill.LogFields{"err": err.Error()})
	default:
		l.failing = true
		l.logger.Error(l.what+" fails; it is tried again until it works", err, nil)
	}
}
