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
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/window"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

const (
	readAheadBytes = 32 << 20    // the default
	slowAfter      = time.Second // a call that takes longer frees its slot among Concurrency
)

// engine reads the outbox, passes each message to send, and writes the outcomes back. Forwarder and Subscriber are its
// two public types.
//
// Its goroutines: the reader, the settler, the keeper of the lease, the timer, the reporter, the maintainer, a
// listener, and the workers. Their shared state is guarded by mu, which only locked takes, on behalf of step.
type engine struct {
	pooled       bool // one of a Group: it has no connection of its own
	db           *core.DB
	cfg          Config
	send         send
	to           *publishers // nil: a Subscriber
	obs          observers
	news         boardLog
	logger       watermill.LoggerAdapter
	reports      *reporter
	owner        string // the id of this run
	sql          statements
	values       context.Context // of the calls' contexts
	workerLabels context.Context

	mu      sync.Locker
	machine *machine.Machine
	drains  map[int64]chan error // waiting calls of drain, each channel of capacity 1

	dirty     atomic.Bool        // there may be something new to read
	readNow   chan struct{}      // capacity 1, like the others: check whether to read
	settleNow chan struct{}      // there are results
	leaseNow  chan struct{}      // lanes can be given back, or must be taken again
	tickNow   chan struct{}      // the timer must wake earlier
	tidyNow   chan chan struct{} // the maintainer must work, then close the channel that it receives
	running   chan struct{}      // closed when lanes are owned

	publishing sync.WaitGroup
	keeper     keeper
	lapse      *time.Timer // for the end of the lease
}

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
		drains:    map[int64]chan error{},
		readNow:   make(chan struct{}, 1),
		settleNow: make(chan struct{}, 1),
		leaseNow:  make(chan struct{}, 1),
		tickNow:   make(chan struct{}, 1),
		tidyNow:   make(chan chan struct{}),
		running:   make(chan struct{}),
	}
	e.machine = machine.New(machine.Config{
		Me: e.owner, LeaseTTL: cfg.LeaseTTL, PollInterval: cfg.PollInterval, CloseTimeout: cfg.CloseTimeout,
	}, board.New(boardConfig(cfg, to)), window.New())
	e.keeper = keeper{
		e: e, had: map[int16]int64{},
		// Cause: the database.
		// Cure: doctor sees old settings.
		facts: trouble.RetryLog{Logger: e.logger, What: "writing the state of this forwarder"},
	}
	e.obs = newObservers(e.values, db.Name(), cfg.Scope, e.db.Observers(), reports, e.logger)
	e.workerLabels, reports.labels = e.labels(e.values, "worker"), e.labels(e.values, "reporter")
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

// step is the only function that uses the machine and the rest of the state under mu. event may call only methods of
// the machine, and nothing that can block.
func (e *engine) step(event func(now time.Time, m *machine.Machine)) {
	for _, call := range e.locked(event) {
		contextOf(call).recall() // it has its own lock
	}
}

// locked is the part of step under mu. It returns the calls to be taken back.
func (e *engine) locked(event func(now time.Time, m *machine.Machine)) (recalled []*board.Call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	event(now, e.machine)
	return e.carryOut(now, e.machine.Effects(now))
}

// carryOut carries out the effects of an event. It only writes to queues, signals, and starts goroutines.
func (e *engine) carryOut(now time.Time, f machine.Effects) (recalled []*board.Call) {
	if f.Start > 0 {
		e.start(f.Start)
	}
	if f.Wake != 0 {
		e.signal(f.Wake)
	}
	if len(f.Expired) > 0 {
		e.publishing.Go(func() { e.expire(f.Expired) }) // safe: the calls' workers keep publishing waited for
	}
	for _, d := range f.Drained {
		e.drains[d.ID] <- errDrained(d)
	}
	if len(f.Reports) > 0 {
		e.reports.post(func() { e.news.report(now, f.Reports) })
	}
	return f.Recall
}

func (e *engine) signal(whom machine.Wake) {
	for _, s := range [...]struct {
		of machine.Wake
		to chan struct{}
	}{
		{machine.WakeReader, e.readNow}, {machine.WakeSettler, e.settleNow},
		{machine.WakeKeeper, e.leaseNow}, {machine.WakeTimer, e.tickNow},
	} {
		if whom&s.of != 0 {
			signal(s.to)
		}
	}
}

// wake signals that there may be something new to read.
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
