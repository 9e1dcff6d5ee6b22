package forwarder

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/google/uuid"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/window"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

const (
	readAheadBytes = 32 << 20    // the default
	slowAfter      = time.Second // a call that takes longer gives up its place among Concurrency
)

// engine reads the outbox, hands each message to send, and settles what became of it. Forwarder and
// Subscriber are its two faces.
//
// Its goroutines: the reader, the settler, the keeper of the lease, the timer, the reporter, the maintainer, one that
// listens, and the workers. What they share is guarded by mu, which locked alone takes, on behalf of step.
type engine struct {
	pooled  bool // one of many: it has no connection of its own
	db      *core.DB
	cfg     Config
	send    send
	to      *publishers // nil: a Subscriber
	obs     observers
	news    boardLog
	logger  watermill.LoggerAdapter
	reports *reporter
	owner   string // the id of this run
	sql     statements
	values  context.Context // of the calls' contexts

	mu         sync.Locker
	board      *board.Board
	window     *window.Window
	lanes      map[int16]owned
	free       []board.Term // to be given back to the database
	workers    map[*worker]struct{}
	starting   int       // of them, those that have not taken a call yet
	leaseUntil time.Time // no publish starts after it
	paused     map[string]pause
	share      int // lanes that are ours to have, by the last count; -1 before the first
	stopping   bool
	asked      bool      // the board wants a read
	reads      int64     // that have begun
	drains     []drain   // calls of drain that wait
	tickAt     time.Time // when the timer looks
	readAt     time.Time // when the reader looks
	quiet      time.Time // since when there is nothing to do; zero = there is
	failing    time.Time // since when no read works; zero = they do
	asking     time.Time // since when a read is under way; zero = none is

	dirty     atomic.Bool        // there is something new to read
	readNow   chan struct{}      // capacity 1, as the others: look whether to read
	settleNow chan struct{}      // there are results
	leaseNow  chan struct{}      // lanes can be given back, or are to be taken anew
	tickNow   chan struct{}      // the timer is to look sooner
	tidyNow   chan chan struct{} // the maintainer is to work, and to close what it gets
	running   chan struct{}      // closed when lanes are owned

	publishing sync.WaitGroup
	keeper     keeper
}

// owned is a lane that is ours in the database.
type owned struct {
	epoch int64
	state laneState
}

type laneState int

const (
	taken   laneState = iota // its blocked keys are not loaded yet
	reading                  // the board and the window have it
	handing                  // it is to be given back once it is free
)

// newEngine makes an engine with connections of its own.
func newEngine(
	base context.Context, db *outbox.DB, cfg Config, s send, to *publishers, logger watermill.LoggerAdapter,
) (*engine, error) {
	if err := (*core.DB)(db).Check(); err != nil {
		return nil, err
	}
	cfg.tables = sqltext.Tables(db.Tables())
	cfg.setDefaults()
	if err := cfg.validate("Config"); err != nil {
		return nil, err
	}
	logger = (*core.DB)(db).Logger(logger).With(watermill.LogFields{"scope": cfg.Scope, "forwarder": cfg.Name})
	reports := newReporter(logger)
	e := &engine{
		db: (*core.DB)(db), cfg: cfg, send: s, to: to,
		logger:  queuedLogger{logger, reports},
		reports: reports,
		owner:   uuid.NewString(),
		sql:     newStatements(cfg),
		values:  context.WithoutCancel(base),

		mu:        &sync.Mutex{},
		board:     board.New(boardConfig(cfg, to)),
		window:    window.New(),
		lanes:     map[int16]owned{},
		paused:    map[string]pause{},
		workers:   map[*worker]struct{}{},
		share:     -1,
		readNow:   make(chan struct{}, 1),
		settleNow: make(chan struct{}, 1),
		leaseNow:  make(chan struct{}, 1),
		tickNow:   make(chan struct{}, 1),
		tidyNow:   make(chan chan struct{}),
		running:   make(chan struct{}),
	}
	e.keeper = keeper{
		e: e, had: map[int16]int64{},
		// Cause: the database does not answer in time.
		// Cure: check the database; until it works outboxctl doctor sees old settings of this forwarder.
		facts: trouble.Log{Logger: e.logger, What: "writing the state of this forwarder"},
	}
	e.obs = newObservers(e.values, db.Name(), cfg.Scope, e.db.Observers(), reports, e.logger)
	e.news = boardLog{logger: logger, obs: &e.obs, since: map[string]time.Time{}, pausedBy: map[string]time.Time{}}
	return e, nil
}

func boardConfig(cfg Config, to *publishers) board.Config {
	return board.Config{
		Concurrency: cfg.Concurrency, Rows: max(cfg.ReadAhead, cfg.Concurrency), Bytes: int64(cfg.ReadAheadBytes),
		SlowAfter: slowAfter, PublishTimeout: max(cfg.PublishTimeout, 0), BlockKeyOnDead: cfg.BlockKeyOnDead,
		Backoff: core.Backoff(cfg.Backoff).Delay, OutageBackoff: core.Backoff(cfg.OutageBackoff).Delay,
		Broker: to.number,
	}
}

// step is the only place where board, window and what else mu guards are touched. fn calls their methods, and nothing
// that may wait.
func (e *engine) step(fn func(now time.Time)) {
	for _, call := range e.locked(fn) {
		call.recall() // which has a lock of its own
	}
}

// locked does what step does under mu, and returns the calls that are to be taken back.
func (e *engine) locked(fn func(now time.Time)) (recalled []*callContext) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	fn(now)
	return e.pass(now, e.board.Effects())
}

// pass hands on what came of an event: to queues, signals and new goroutines only.
func (e *engine) pass(now time.Time, f board.Effects) (recalled []*callContext) {
	if f.Publish > e.starting && now.Before(e.leaseUntil) {
		e.start(f.Publish)
	}
	if f.Settle {
		signal(e.settleNow)
	}
	tick, read := e.board.Due()
	if f.Read || !read.IsZero() && read.Before(e.readAt) {
		e.asked = e.asked || f.Read
		signal(e.readNow)
	}
	if !tick.IsZero() && tick.Before(e.tickAt) {
		e.tickAt = tick
		signal(e.tickNow)
	}
	if len(f.Free) > 0 {
		e.free = append(e.free, f.Free...)
		signal(e.leaseNow)
	}
	for _, c := range f.Recall {
		for w := range e.workers {
			if w.call == c {
				recalled = append(recalled, w.ctx)
			}
		}
	}
	if len(f.Expired) > 0 {
		e.publishing.Go(func() { e.expire(f.Expired) }) // their workers are still waited for, so this is in time
	}
	if len(f.Reports) > 0 {
		e.notePauses(now, f.Reports)
		e.reports.post(func() { e.news.report(now, f.Reports) })
	}
	return recalled
}

// lose forgets terms that are over, or were given back. It is called under mu.
func (e *engine) lose(terms ...board.Term) {
	for _, t := range terms {
		if e.lanes[t.Lane].epoch == t.Epoch {
			delete(e.lanes, t.Lane)
		}
		if _, epoch := e.window.Mark(t.Lane); epoch == t.Epoch {
			e.window.Drop(t.Lane)
		}
	}
	e.board.LanesLost(terms...)
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
