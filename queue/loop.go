package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

const (
	// queryTimeout bounds each of our statements outside a handler's transaction.
	queryTimeout = 10 * time.Second
	// lastWait is how long handlers may take to return after their contexts have ended.
	lastWait = 5 * time.Second
)

// errStopped ends the contexts of handlers that are still running after CloseTimeout.
// Cause: handlers took longer than CloseTimeout.
// Cure: raise it, or return when the context ends.
var errStopped = errors.New("queue: stopped")

// loopConfig is the configuration in which a Dispatcher and a subscription differ.
type loopConfig struct {
	only         []string       // nil = all topics
	limits       map[string]int // of topics with their own limit
	slots, batch int
	room         int // payload bytes
	lease, poll  time.Duration
	closeTimeout time.Duration
}

// loop claims messages and handles each in its own goroutine. One goroutine claims, one renews leases, and one acks
// while there is anything to ack.
//
// Lock order: claiming, the mu of a Group, the mu of the loop, the mu of a claimed. claimBatch requests slots from a
// Group under claiming, a Group reads the schedules of its loops under its own mu, and nothing under a loop's mu calls
// its Group.
type loop struct {
	store  *Store
	cfg    loopConfig
	owner  Owner
	logger watermill.LoggerAdapter
	handle func(c *claimed) // settles the message, now or later; may end its goroutine
	freed  func(c *claimed) // nil, or called when the slot of a message is free, before any notification

	base    context.Context // for its values; never ends. Set by begin, as are the next four
	work    context.Context // parent of the handlers' contexts
	giveUp  context.CancelCauseFunc
	acks    *acker
	endAcks context.CancelFunc // ends their retries
	news    chan struct{}      // capacity 1: signals messages or a free slot
	running chan struct{}      // closed at the first poll

	handlers sync.WaitGroup

	claiming sync.Mutex   // held from a claim until claimed has its messages; taken before mu
	cursor   *claimCursor // guarded by claiming

	mu         sync.Mutex
	schedule   schedule
	claimed    map[ID]*claimed // including those whose ack is in flight, or is retried after a refusal
	lostClaims lostClaims
	stopping   bool
	drains     []*drain
}

func newLoop(s *Store, cfg loopConfig, logger watermill.LoggerAdapter, handle func(*claimed)) *loop {
	l := &loop{
		store: s, cfg: cfg, owner: NewOwner(), logger: logger, handle: handle,
		news: make(chan struct{}, 1), running: make(chan struct{}),
		cursor: newClaimCursor(), schedule: newSchedule(cfg.slots, cfg.batch, cfg.room, cfg.poll, cfg.limits),
		claimed: map[ID]*claimed{},
	}
	return l
}

// begin must be called first. The caller must call end after run has returned, or instead of run.
func (l *loop) begin(ctx context.Context) (end func()) {
	l.base = core.OutsideTx(context.WithoutCancel(ctx))
	l.work, l.giveUp = context.WithCancelCause(l.base)
	acking, endAcks := context.WithCancel(l.base)
	l.acks, l.endAcks = newAcker(acking, l, max(batchSize, 2*l.cfg.slots)), endAcks
	return func() {
		endAcks()
		l.giveUp(nil)
	}
}

// run claims until ctx ends, and returns when everything that it started has ended or refuses to end.
func (l *loop) run(ctx context.Context) { l.serve(ctx, l.claim) }

// serve works like run with another claim function, which returns when ctx ends.
func (l *loop) serve(ctx context.Context, claim func(ctx context.Context)) {
	defer l.store.db.OnCommit(l.notified)()
	var helpers sync.WaitGroup
	over, end := context.WithCancel(l.base)
	helpers.Go(func() { l.renew(over) })
	defer l.endAcks()
	close(l.running)
	claim(ctx)
	l.stop()
	end()
	defer time.AfterFunc(queryTimeout, l.endAcks).Stop()
	l.acks.batcher.close()
	l.step(func() {
		for _, c := range l.claimed {
			if c.acking { // nothing will write this ack, which was refused
				l.freeSuspectSlot(c)
			}
		}
	})
	helpers.Wait()
	l.releaseLastLostClaims()
}

// notified must be called after a commit.
func (l *loop) notified(n core.Notification) {
	if n.Concerns(l.cfg.only) {
		l.wake()
	}
}

// wake makes the loop poll now. It never blocks.
func (l *loop) wake() {
	l.step(func() { l.schedule.woke(time.Now()) })
	l.signal()
}

func (l *loop) signal() {
	select {
	case l.news <- struct{}{}:
	default:
	}
}

func (l *loop) step(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn()
}

func (l *loop) claim(ctx context.Context) {
	// Cause: the database.
	// Cure: no message is handled.
	report := trouble.RetryLog{Logger: l.logger, What: "claiming messages"}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		var n int
		var wait time.Duration
		l.step(func() { n, wait = l.schedule.nextClaim(time.Now()) })
		if n > 0 {
			_, _, err := l.claimBatch(ctx, n, nil)
			report.Report(err)
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-l.news:
		}
	}
}

// claimBatch claims up to n messages and starts their handlers. It returns how many, and whether there may be more.
// admit, unless nil, gets the number claimed and returns how many of them have slots; the others are released.
func (l *loop) claimBatch(ctx context.Context, n int, admit func(n int) int) (started int, full bool, err error) {
	l.claiming.Lock()
	defer l.claiming.Unlock()
	unable := l.releaseLostClaims()
	var counts []*drain
	var limits []room
	var bytes int
	l.step(func() {
		limits, bytes = l.schedule.began(time.Now()), l.schedule.bytesFree()
		if len(l.claimed) == 0 && !l.lostClaims.unsure {
			counts = append(counts, l.drains...)
		}
	})
	begun := time.Now()
	// ctx must not interrupt a claim: its outcome would be unknown
	queryCtx, cancel := context.WithTimeout(l.base, queryTimeout)
	defer cancel()
	found, err := l.store.claim(queryCtx, Claim{
		Owner: l.owner, LeaseTTL: l.cfg.lease, Limit: n, Topics: l.cfg.only, MaxBytes: bytes,
	},
		claimRequest{limits: limits, suspects: suspects.free()}, l.cursor)
	switch {
	case err != nil:
		l.step(func() { l.lostClaims.mayExist(time.Now(), l.cfg.lease) })
	case unable != nil:
		// Cause: the connection broke.
		// Cure: they are redelivered when their leases expire.
		l.logger.Error("messages claimed by a statement whose reply was lost: could not look for them: retrying", unable, nil)
	}
	if found.suspect && !suspects.take() {
		// not held during the claim: a database that hangs must not delay the messages of others
		l.giveBack(claims{msgs: found.msgs[:1]})
		found.msgs, found.suspect = found.msgs[1:], false
	}
	if ctx.Err() != nil {
		if admit != nil {
			admit(0)
		}
		l.giveBack(found)
		return 0, false, nil
	}
	if admit != nil {
		found = l.admitted(found, admit)
	}
	l.step(func() {
		for i, msg := range found.msgs {
			if l.runs(msg.ID, begun.Add(l.cfg.lease)) {
				if i == 0 && found.suspect {
					suspects.release()
				}
				continue
			}
			l.start(&claimed{Message: msg, loop: l, suspect: i == 0 && found.suspect}, begun.Add(l.cfg.lease))
			started++
		}
		l.schedule.claimed(begun, time.Now(), started, found.full && err == nil, found.behind)
		l.drained(counts, err == nil && found.empty)
	})
	return started, found.full && err == nil, err
}

// admitted releases messages without slots. claiming must be held.
func (l *loop) admitted(found claims, admit func(n int) int) claims {
	n := admit(len(found.msgs))
	if n == len(found.msgs) {
		return found
	}
	l.giveBack(claims{msgs: found.msgs[n:], suspect: found.suspect && n == 0})
	found.msgs, found.suspect, found.full = found.msgs[:n], found.suspect && n > 0, true
	return found
}

// giveBack releases messages that no handler has begun. claiming must be held.
func (l *loop) giveBack(found claims) {
	if found.suspect {
		defer suspects.release()
	}
	ids := make([]ID, len(found.msgs))
	for i, msg := range found.msgs {
		ids[i] = msg.ID
	}
	ctx, cancel := context.WithTimeout(l.base, queryTimeout)
	defer cancel()
	if _, err := l.store.Release(ctx, l.owner, ids...); err != nil {
		l.step(func() { l.lostClaims.mayExist(time.Now(), l.cfg.lease) })
	}
}

// runs reports whether a handler here is still running for a claimed message whose lease expired or that was released.
// If so, that handler gets the new lease. mu must be held.
func (l *loop) runs(id ID, until time.Time) bool {
	c := l.claimed[id]
	if c == nil {
		return false
	}
	c.again.Store(true)
	c.extend(until)
	return true
}

// start handles a message, in a slot of its topic. mu must be held.
func (l *loop) start(c *claimed, until time.Time) {
	l.schedule.take(c.Topic, len(c.Payload), c.expired)
	c.until = until
	l.claimed[c.ID] = c
	l.handlers.Add(1)
	if c.suspect {
		// what kills a process usually does so sooner, and a handler or an ack that hangs must not hold up other suspects
		c.suspectTimer = time.AfterFunc(l.cfg.lease, func() { l.step(func() { l.freeSuspectSlot(c) }) })
	}
	go func() {
		defer l.handlers.Done()
		defer l.returned(c)
		l.handle(c)
	}()
}

// freeSuspectSlot frees the slot for suspects if the message has it. mu must be held.
func (l *loop) freeSuspectSlot(c *claimed) {
	if !c.suspect {
		return
	}
	c.suspect = false
	c.suspectTimer.Stop()
	suspects.release()
	l.schedule.woke(time.Now())
	l.signal()
}

// returned frees the slot of a message.
func (l *loop) returned(c *claimed) {
	c.end(nil)
	l.step(func() {
		l.schedule.done(c.Topic, len(c.Payload), c.expired)
		if !c.acking {
			l.forget(c)
		}
	})
	if l.freed != nil {
		l.freed(c)
	}
	l.signal()
}

// forget drops settled messages. Only then is the slot for suspects free: a process that dies before it has written an
// ack counts an attempt of that message. mu must be held.
func (l *loop) forget(settled ...*claimed) {
	for _, c := range settled {
		delete(l.claimed, c.ID)
		l.freeSuspectSlot(c)
		if c.again.Load() { // possibly after it was settled
			l.lostClaims.maybeOurs = append(l.lostClaims.maybeOurs, c.ID)
		}
	}
	if len(l.drains) > 0 && len(l.claimed) == 0 {
		l.schedule.woke(time.Now())
		l.signal()
	}
}

// refuse stops the handling of messages.
func (l *loop) refuse() {
	l.step(func() {
		l.stopping = true
		for _, d := range l.drains {
			d.end(outbox.ErrClosed)
		}
	})
}

// stop waits for the handlers, ends their contexts after CloseTimeout, and then waits up to lastWait.
func (l *loop) stop() {
	l.refuse()
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.handlers.Wait()
	}()
	if within(done, l.cfg.closeTimeout) {
		return
	}
	l.giveUp(errStopped)
	if !within(done, lastWait) {
		// Cause: a call, lock or wait without the context.
		// Cure: return when the context ends.
		l.logger.Error("stopped while handlers were running: they ignore their contexts: their messages are redelivered "+
			"when the leases expire",
			errStopped, nil)
	}
}

func within(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
