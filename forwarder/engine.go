package forwarder

import (
	"context"
	"fmt"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/google/uuid"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/cursor"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
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
// Its goroutines: the reader, the settler, the rebalancer, the timer, the reporter, the maintainer, the cleaner,
// watchPauses, recordPauses, a listener, and the workers. Their shared state is guarded by mu, which only locked takes,
// on behalf of step.
type engine struct {
	pooled       bool // one of a Group: it has no connection of its own
	db           *core.DB
	cfg          Config
	send         send
	to           *publishers // nil: a Subscriber
	obs          observers
	reportLog    reportLog
	logger       watermill.LoggerAdapter
	reports      *reporter
	owner        string // the id of this run
	sql          statements
	values       context.Context // of the calls' contexts
	workerLabels context.Context

	mu          sync.Locker
	coordinator *coordinator.Coordinator
	drains      map[int64]chan error // waiting calls of drain, each channel of capacity 1

	dirty        atomic.Bool        // there may be something new to read
	readNow      chan struct{}      // capacity 1, like the others: check whether to read
	settleNow    chan struct{}      // there are results
	rebalanceNow chan struct{}      // lanes can be given back, or must be taken again
	tickNow      chan struct{}      // the timer must wake earlier
	cleanUpNow   chan chan struct{} // the cleaner must work, then close the channel that it receives
	running      chan struct{}      // closed when lanes are owned
	unread       unreadTopics

	publishing sync.WaitGroup
	rebalancer rebalancer
	leaseTimer *time.Timer // for the end of the lease
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

		mu:           &sync.Mutex{},
		drains:       map[int64]chan error{},
		readNow:      make(chan struct{}, 1),
		settleNow:    make(chan struct{}, 1),
		rebalanceNow: make(chan struct{}, 1),
		tickNow:      make(chan struct{}, 1),
		cleanUpNow:   make(chan chan struct{}),
		running:      make(chan struct{}),
	}
	e.coordinator = coordinator.New(coordinator.Config{
		Me: e.owner, LeaseTTL: cfg.LeaseTTL, PollInterval: cfg.PollInterval, CloseTimeout: cfg.CloseTimeout,
	}, dispatch.New(dispatchConfig(cfg, to)), cursor.New())
	e.rebalancer = rebalancer{
		e: e, epochs: map[int16]int64{},
		// Cause: the database.
		// Cure: doctor sees old settings.
		facts: trouble.RetryLog{Logger: e.logger, What: "writing the state of this forwarder"},
	}
	// Cause: the database.
	// Cure: unread topics are not reported.
	e.unread.log = trouble.RetryLog{Logger: e.logger, What: "checking for topics without a forwarder"}
	e.obs = newObservers(e.values, db.Name(), cfg.Scope, e.db.Observers(), reports, e.logger)
	e.workerLabels, reports.labels = e.labels(e.values, "worker"), e.labels(e.values, "reporter")
	e.reportLog = reportLog{logger: logger, obs: &e.obs, since: map[string]time.Time{}, pausedBy: map[string]time.Time{}}
	return e, nil
}

func dispatchConfig(cfg Config, to *publishers) dispatch.Config {
	return dispatch.Config{
		Concurrency: cfg.Concurrency, Rows: max(cfg.ReadAhead, cfg.Concurrency), Bytes: int64(cfg.ReadAheadBytes),
		SlowAfter: slowAfter, PublishTimeout: max(cfg.PublishTimeout, 0), BlockKeyOnDead: cfg.BlockKeyOnDead,
		Backoff: core.Backoff(cfg.Backoff).Delay, OutageBackoff: core.Backoff(cfg.OutageBackoff).Delay,
		Broker: to.number,
	}
}

// step is the only function that uses the coordinator and the rest of the state under mu. event may call only methods
// of the coordinator, and nothing that can block.
func (e *engine) step(event func(now time.Time, c *coordinator.Coordinator)) {
	for _, call := range e.locked(event) {
		contextOf(call).recall() // it has its own lock
	}
}

// locked is the part of step under mu. It returns the calls to be taken back.
func (e *engine) locked(event func(now time.Time, c *coordinator.Coordinator)) (recalled []*dispatch.Call) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	event(now, e.coordinator)
	return e.carryOut(now, e.coordinator.Effects(now))
}

// carryOut carries out the effects of an event. It only writes to queues, signals, and starts goroutines.
func (e *engine) carryOut(now time.Time, f coordinator.Effects) (recalled []*dispatch.Call) {
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
		e.reports.post(func() { e.reportLog.report(now, f.Reports) })
	}
	return f.Recall
}

func (e *engine) signal(whom coordinator.Wake) {
	for _, s := range [...]struct {
		of coordinator.Wake
		to chan struct{}
	}{
		{coordinator.WakeReader, e.readNow}, {coordinator.WakeSettler, e.settleNow},
		{coordinator.WakeRebalancer, e.rebalanceNow}, {coordinator.WakeTimer, e.tickNow},
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

// prepare checks the schema and registers the forwarder. If it fails, nothing has to be undone.
func (e *engine) prepare(ctx context.Context) error {
	checkCtx, cancel := context.WithTimeout(ctx, 3*e.cfg.QueryTimeout) // for several statements
	defer cancel()
	if err := e.cfg.check(checkCtx, (*outbox.DB)(e.db)); err != nil {
		return err
	}
	if err := e.prepareSettling(ctx); err != nil {
		return err
	}
	if err := e.readOperatorPauses(ctx); err != nil { // before anything is read
		return err
	}
	return e.rebalancer.register(ctx)
}

// run works until ctx ends, then stops in order: it reads and sends nothing new, waits for publishes in flight and
// settles them, and releases the lanes.
func (e *engine) run(ctx context.Context) error {
	e.rebalancer.q = e.db
	if !e.pooled {
		lease, closeLease, err := e.db.Dedicated(ctx)
		if err != nil {
			return fmt.Errorf("open a connection for the lease: %w", err)
		}
		defer closeLease()
		e.rebalancer.q = lease
	}
	e.leaseTimer = time.AfterFunc(time.Hour, e.recall) // the rebalancer sets it
	defer e.leaseTimer.Stop()
	stopWake := e.db.OnCommit(e.notified)
	defer stopWake()

	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	settling, stopSettling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSettling()

	var front, back, settler sync.WaitGroup
	front.Go(e.labelled(ctx, "reader", e.read))
	front.Go(e.labelled(ctx, "maintainer", e.maintain))
	front.Go(e.labelled(ctx, "cleaner", e.clean))
	front.Go(e.labelled(ctx, "operator", e.watchPauses))
	front.Go(e.labelled(ctx, "pauses", e.recordPauses))
	if !e.cfg.DisableListen {
		front.Go(e.labelled(ctx, "listener", e.listen))
	}
	back.Go(e.labelled(background, "rebalancer", e.rebalancer.run))
	back.Go(e.labelled(background, "timer", e.tick))
	settler.Go(e.labelled(settling, "settler", e.runSettler))

	<-ctx.Done()
	e.step(func(now time.Time, c *coordinator.Coordinator) { c.Stop(now) })
	front.Wait()
	signal(e.rebalanceNow)
	left := e.waitForPublishes()
	stopSettling()
	settler.Wait() // it settles the remaining results before it returns
	stopBackground()
	back.Wait()
	e.rebalancer.leave()
	if left > 0 {
		// Cause: publishes took longer than CloseTimeout.
		// Cure: raise CloseTimeout above PublishTimeout; inboxes skip the duplicates.
		e.logger.Error("stopped during publishes: those messages are published again",
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
	return e.giveUp()
}

// tick is the goroutine of the single timer for all calls.
func (e *engine) tick(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-e.tickNow:
		}
		e.step(func(now time.Time, c *coordinator.Coordinator) { timer.Reset(c.Tick(now)) })
	}
}

// statements are the statements of the engine with the table names filled in.
type statements struct {
	fetch, fetchRange, fetchMore, fetchRangeMore, fetchPayloads                      string
	fetchApart, fetchMoreApart                                                       string
	createIncarnation, writers, loadBlocked, sweep, pending, clean                   string
	settlePublished, settleSpan, settleUnlocked, settleFailed, mayWrite              string
	lock, lockHolder, announce, ahead, join, createLanes, heartbeat, members, expire string
	lanes, take, retake, release                                                     string
	leave, forget, pause, operatorPauses, unreadTopics, writeFacts                   string
}

func newStatements(cfg Config) statements {
	t := cfg.tables
	s := statements{
		fetch: t.Render(sqltext.Fetch), fetchRange: t.Render(sqltext.FetchRange), fetchMore: t.Render(sqltext.FetchMore),
		fetchApart: t.Render(sqltext.FetchApart), fetchMoreApart: t.Render(sqltext.FetchMoreApart),
		fetchRangeMore: t.Render(sqltext.FetchRangeMore), createIncarnation: t.Render(sqltext.CreateIncarnation),
		fetchPayloads: t.Render(sqltext.FetchPayloads), writers: t.Render(sqltext.Writers),
		loadBlocked: t.Render(sqltext.LoadBlocked), sweep: t.Render(sqltext.Sweep),
		pending:         t.Render(sqltext.Pending),
		settlePublished: t.Render(sqltext.SettlePublished), settleSpan: t.Render(sqltext.SettleSpan),
		settleUnlocked: t.Render(sqltext.SettleUnlocked),
		settleFailed:   t.Render(sqltext.SettleFailed), mayWrite: t.Render(sqltext.MayWrite),
		clean: t.Render(sqltext.CleanPublished),
		lock:  t.Render(sqltext.LockToJoin), lockHolder: t.Render(sqltext.JoinLockHolder),
		announce: t.Render(sqltext.AnnounceForwarder), ahead: t.Render(sqltext.ForwardersAhead),
		join: t.Render(sqltext.JoinForwarders), createLanes: t.Render(sqltext.CreateLanes),
		heartbeat: t.Render(sqltext.Heartbeat), writeFacts: t.Render(sqltext.WriteFacts), members: t.Render(sqltext.Members),
		expire: t.Render(sqltext.ExpireForwarder), lanes: t.Render(sqltext.Lanes),
		take: t.Render(sqltext.TakeLanes), retake: t.Render(sqltext.RetakeLanes), release: t.Render(sqltext.ReleaseLanes),
		leave: t.Render(sqltext.LeaveForwarders), forget: t.Render(sqltext.ForgetForwarders),
		pause: t.Render(sqltext.PauseTopics), operatorPauses: t.Render(sqltext.OperatorPauses),
		unreadTopics: t.Render(sqltext.UnreadTopics),
	}
	if cfg.DeadLetterTopic != "" {
		s.settleFailed = t.Render(sqltext.SettleFailedDeadLetters)
	}
	if cfg.Retention == -1 {
		s.settlePublished, s.settleSpan = t.Render(sqltext.SettlePublishedDelete), t.Render(sqltext.SettleSpanDelete)
		s.settleUnlocked = t.Render(sqltext.SettleUnlockedDelete)
	}
	return s
}

// labels adds to a context the profiler labels of a goroutine of the engine: its task, and for which outbox.
func (e *engine) labels(ctx context.Context, goroutine string) context.Context {
	return pprof.WithLabels(ctx, pprof.Labels(
		"outbox", goroutine, "outbox_db", e.obs.db, "outbox_scope", e.cfg.Scope, "outbox_forwarder", e.cfg.Name,
	))
}

// labelled wraps work so that it runs with its own labels instead of those of the goroutine that starts it.
func (e *engine) labelled(ctx context.Context, goroutine string, work func(context.Context)) func() {
	ctx = e.labels(ctx, goroutine)
	return func() {
		pprof.SetGoroutineLabels(ctx)
		work(ctx)
	}
}
