package dispatch_test

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/cursor"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lease"
)

// forwarder is one process: the real coordinator, driven as the engine drives it. Each goroutine of the engine is a
// method that makes one step, and the model decides whose turn it is.
type forwarder struct {
	m           *model
	id          int
	coordinator *coordinator.Coordinator
	dispatcher  *dispatch.Dispatcher // for inspection, and to damage it
	cursors     *cursor.Cursors

	settle, read bool               // woken
	readAt       time.Time          // when the reader polls; zero = now
	tickAt       time.Time          // when the timer fires
	drains       map[int64]draining // pending calls of Drain
	launched     int                // workers that have not made their first step
	calls        []*call
	epochs       map[int16]int64           // the highest epoch of each lane that it had
	freed        map[lease.Assignment]bool // lanes reported as free

	planned     bool      // a read is about to begin
	applying    bool      // an answer is being applied
	pausedUntil time.Time // after an error
	scanned     func()    // applies what the maintainer has read
	reading     *reading
	late        *reading // an additional read, in variants where reads overlap
	loading     *loading
	settling    *settling
	left        settling // results taken but not settled yet
	keeping     *keeping
	checking    *checking
	sweeping    map[int16]int64 // cursors
	lastFailed  *dispatch.Row
	paused      []string        // paused topics, as far as the dispatcher knows
	full        [laneCount]bool // lanes in which its last read of all due rows hit the limit
	writers     map[uint32]bool // read before the read, if requested
	lastSeq     int64           // of the last read

	more        bool      // there are more rows to read
	dirty       bool      // something was committed since the last read began
	frozen      time.Time // it does nothing before then
	frozenWhile func() bool
	noReadWhile func() bool
	ttl         time.Duration // its configured lease
	leaseUntil  time.Time     // as far as it knows
	short       int
	seen        map[string]sighting // the other members, by id

	blockedBefore map[int16][]dispatch.BlockedRow // blocked rows as the rebalancer read them

	due       map[string]time.Time       // by UUID, the due times of failed messages as far as it knows
	told      map[*dispatch.Row]*telling // the result of each row's call
	success   map[rowOf]bool             // successes reported in this assignment
	found     map[rowOf]int              // requeued rows that a read found, and their last change by hand
	unsettled map[*dispatch.Row]bool     // those not settled yet
	answers   []said
}

// pollInterval is the interval of a forwarder's polls.
const pollInterval = 5 * time.Millisecond

func newForwarder(m *model) *forwarder {
	m.forwarderIDs++
	f := &forwarder{m: m, id: m.forwarderIDs, dispatcher: dispatch.New(m.cfg), cursors: cursor.New(),
		epochs: map[int16]int64{}, freed: map[lease.Assignment]bool{}, ttl: m.db.leases, sweeping: map[int16]int64{},
		told: map[*dispatch.Row]*telling{}, success: map[rowOf]bool{}, found: map[rowOf]int{},
		unsettled: map[*dispatch.Row]bool{},
		drains:    map[int64]draining{}, seen: map[string]sighting{},
		due: map[string]time.Time{}}
	f.coordinator = coordinator.New(coordinator.Config{
		Me: strconv.Itoa(f.id), LeaseTTL: f.ttl, PollInterval: pollInterval, CloseTimeout: 5 * time.Millisecond,
	}, f.dispatcher, f.cursors)
	return f
}

func (f *forwarder) logf(format string, args ...any) {
	if f.m.logging {
		f.m.logf("forwarder %d "+format, append([]any{f.id}, args...)...)
	}
}

// take collects the effects of an event.
func (f *forwarder) take() {
	e := f.coordinator.Effects(f.m.db.now)
	f.launched += e.Start
	f.settle = f.settle || e.Wake&coordinator.WakeSettler != 0
	f.read = f.read || e.Wake&coordinator.WakeReader != 0
	f.checkSignals(e)
	for _, t := range f.coordinator.Free() {
		if !f.freed[t] {
			f.freed[t] = true
			f.isFree(t)
		}
	}
	for _, d := range e.Drained {
		f.drained(d)
	}
	for _, c := range e.Recall {
		if o := f.callOf(c); o != nil {
			f.logf("is to recall %d", c.Row.ID)
			o.recalled = true
		}
	}
	for _, c := range e.Expired {
		if o := f.callOf(c); o != nil {
			o.expired = true
		}
	}
	for _, r := range e.Reports {
		f.logf("reports %+v", r)
		f.m.overflowed = f.m.overflowed || r.Kind == dispatch.TooManyWaiting
		if r.Kind == dispatch.OrphanFound && !f.m.operators {
			f.m.failf("forwarder %d: the sweep found unknown row %d", f.id, r.ID)
		}
	}
}

// timer makes a step of the goroutine with the only timer.
func (f *forwarder) timer() {
	f.tickAt = f.m.db.now.Add(f.coordinator.Tick(f.m.db.now))
	f.take()
}

// stop begins a graceful stop.
func (f *forwarder) stop() {
	f.logf("stops")
	f.late, f.loading, f.checking = nil, nil, nil
	f.coordinator.Stop(f.m.db.now)
	f.take()
	if f.reading != nil && f.reading.answer == nil { // a read with a response is still used
		f.readFailed(f.reading)
	}
	if f.m.variant.stopDropsResults {
		f.giveUp()
	}
}

// stopped reports whether a graceful stop is complete.
func (f *forwarder) stopped() bool {
	return f.coordinator.Stopping() && len(f.coordinator.Assignments()) == 0 && f.dispatcher.Counts().Unsettled == 0 &&
		f.reading == nil && f.settling == nil && f.keeping == nil &&
		!slices.ContainsFunc(f.calls, func(c *call) bool { return !c.timedOut })
}

func (f *forwarder) standsStill() bool {
	return f.frozen.After(f.m.db.now) || f.frozenWhile != nil && f.frozenWhile()
}

// step lets one of the goroutines make a step.
func (f *forwarder) step() {
	if f.m.edges && f.m.side.IntN(100) < 5 && len(f.drains) < 2 {
		f.drain(f.m.side.IntN(2) == 0)
	}
	switch p := f.m.rng.IntN(100); {
	case p < 30:
		f.reader()
	case p < 45:
		f.worker()
	case p < 65:
		f.publisher()
	case p < 80:
		f.settler()
	case p < 85:
		f.timer()
	case p < 90:
		if f.m.maintains {
			f.maintainer()
		}
	case f.m.chance(f.m.keeps):
		f.rebalancer()
	}
}

func (f *forwarder) String() string {
	return fmt.Sprintf("forwarder %d: %d lanes, %d calls, %d and %d results left", f.id, len(f.coordinator.Assignments()),
		len(f.calls), len(f.left.published), len(f.left.failed))
}
