package forwarder

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lease"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

const (
	// leaveTimeout bounds the release of the lanes; if it fails, the lease expires on its own.
	leaveTimeout = 5 * time.Second
	// waitInterval is how often a forwarder that waits for others to leave checks whether they have.
	waitInterval = time.Second
)

// keeper is the goroutine that renews the lease, and takes and releases lanes so that each live forwarder has its
// share. Only it writes lanes in the database, and only it uses these fields.
type keeper struct {
	e      *engine
	q      drive.Querier // a connection that handlers cannot starve
	joined bool          // no other scope may read our topics
	unsure bool          // the lease expired since lanes were last read: others may have taken some of ours
	waits  waitReport
	short  int              // consecutive plans in which lanes were missing from our share
	owned  int              // number of lanes last reported
	had    map[int16]int64  // the highest epoch of each lane that was ours
	seen   seenLeases       // leases of other forwarders
	told   string           // facts last written
	facts  trouble.RetryLog // failures to write them
}

func (k *keeper) keep(ctx context.Context) {
	// Cause: the database.
	// Cure: raise LeaseTTL if statements are slow; when it is over, other forwarders take the lanes.
	report := trouble.RetryLog{Logger: k.e.logger, What: "renewing the lease"}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-k.e.leaseNow:
		}
		// Not cancelled at the end: a late cancellation could hit the statement that releases everything.
		wait, err := k.balance(context.WithoutCancel(ctx))
		if ctx.Err() != nil {
			return
		}
		report.Report(err)
		if err != nil {
			wait = k.soon()
		}
		timer.Reset(wait)
	}
}

// balance renews the lease, releases free lanes, carries out the plan for the others, and writes the facts about this
// forwarder. It returns when to run again.
func (k *keeper) balance(ctx context.Context) (time.Duration, error) {
	e := k.e
	stopping := false
	e.step(func(_ time.Time, m *machine.Machine) { stopping = m.Stopping() })
	begun, err := k.renew(ctx, stopping)
	if err != nil {
		return 0, err
	}
	ctx, cancel := k.soonDone(ctx)
	defer cancel()
	if !k.joined {
		if _, err := k.members(ctx); err != nil { // a dead one may be in our way
			return 0, err
		}
		return min(e.cfg.LeaseTTL/3, waitInterval), k.stepAside(ctx)
	}
	if !k.unsure {
		e.extend(begun)
	}
	if err := k.giveBack(ctx); err != nil {
		return 0, err
	}
	members, err := k.members(ctx)
	if err != nil {
		return 0, err
	}
	list, err := k.allLanes(ctx)
	if err != nil {
		return 0, err
	}
	var p lease.Plan
	e.step(func(_ time.Time, m *machine.Machine) { p = m.Viewed(members, list, k.short) })
	if k.unsure { // only after lanes that others took meanwhile are dropped
		k.unsure = false
		e.recall()
		e.extend(begun)
	}
	next, err := k.take(ctx, p)
	if err != nil {
		return 0, err
	}
	err = k.tell(ctx) // last, because no lane may wait for it
	if k.facts.Report(err); err != nil {
		next = min(next, k.soon())
	}
	return min(next, max(0, e.cfg.LeaseTTL/3-time.Since(begun))), nil // a slow database shortens no lease
}

// renew renews the lease. If it has expired it joins again, with no time limit, because there is nothing left to lose.
// It returns when the current lease began.
func (k *keeper) renew(ctx context.Context, stopping bool) (begun time.Time, err error) {
	begun, renewed, err := k.heartbeat(ctx, stopping)
	if err != nil {
		return begun, err
	}
	if !renewed {
		k.joined = false // even if joining again fails: its answer may be lost, or it may have to wait
	}
	if k.joined {
		return begun, nil
	}
	k.unsure = true
	if err := k.register(ctx); err != nil || !k.joined {
		return begun, err
	}
	begun, renewed, err = k.heartbeat(ctx, stopping) // most of the lease may have passed
	if err == nil && !renewed {
		k.joined = false
		err = fmt.Errorf("the lease of %s expired while the forwarder joined: the database responds slowly: raise "+
			"LeaseTTL",
			k.e.cfg.LeaseTTL)
	}
	return begun, err
}

// heartbeat renews the lease unless it has expired.
func (k *keeper) heartbeat(ctx context.Context, stopping bool) (begun time.Time, renewed bool, err error) {
	ctx, cancel := k.soonDone(ctx)
	defer cancel()
	begun = time.Now()
	n, err := k.q.Exec(ctx, k.e.sql.heartbeat, k.e.owner, k.e.cfg.LeaseTTL.Seconds(), stopping)
	if err != nil {
		return begun, false, fmt.Errorf("renew lease: %w", err)
	}
	return begun, n > 0, nil
}

// soonDone bounds work that must not delay the renewal of the lease. Without a lease the limit is longer: a timeout
// closes the connection, and opening a new one is slower than any statement.
func (k *keeper) soonDone(ctx context.Context) (context.Context, context.CancelFunc) {
	most := max(k.e.cfg.LeaseTTL/3, time.Second)
	k.e.step(func(now time.Time, m *machine.Machine) {
		if !m.Leased(now) {
			most = max(most, min(5*most, k.e.cfg.QueryTimeout))
		}
	})
	return context.WithTimeout(ctx, most)
}

// soon returns when to retry after a failure.
func (k *keeper) soon() time.Duration { return min(k.e.cfg.LeaseTTL/10, time.Second) }

// take takes the lanes of the plan.
func (k *keeper) take(ctx context.Context, p lease.Plan) (next time.Duration, err error) {
	e := k.e
	k.short, next = p.Short, p.Next
	if err := k.takeLanes(ctx, e.sql.retake, p.Retake); err != nil {
		return 0, err
	}
	if err := k.takeLanes(ctx, e.sql.take, p.Take); err != nil {
		return 0, err
	}
	owned, missing := 0, false
	e.step(func(_ time.Time, m *machine.Machine) { owned, missing = m.Owned() })
	if missing && p.Short == 0 { // another was faster
		next = min(next, lookAgain)
	}
	k.owns(owned)
	select {
	case <-e.running:
	default:
		close(e.running)
	}
	return next, nil
}

// owns reports the number of lanes owned now.
func (k *keeper) owns(lanes int) {
	if lanes != k.owned {
		k.owned = lanes
		say := k.e.logger.Info
		if k.e.pooled { // it is temporary
			say = k.e.logger.Debug
		}
		say("lanes owned", watermill.LogFields{"lanes": lanes})
		k.e.obs.owned(lanes)
	}
}

// lookAgain is when to check again after others took lanes that we wanted.
const lookAgain = 50 * time.Millisecond

// giveBack releases the lanes that have nothing in flight any more.
func (k *keeper) giveBack(ctx context.Context) error {
	var free []board.Term
	k.e.step(func(_ time.Time, m *machine.Machine) { free = m.Free() })
	return k.release(ctx, free)
}

// stepAside drops the lanes of a forwarder that came back late and now has to wait for others.
func (k *keeper) stepAside(ctx context.Context) error {
	var list []board.Term
	k.e.step(func(_ time.Time, m *machine.Machine) { list = m.SteppedAside() })
	k.owns(0)
	return k.release(ctx, list)
}

// leave releases everything immediately, so that no other forwarder has to wait for the lease to expire.
func (k *keeper) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	e := k.e
	var list []board.Term
	e.step(func(_ time.Time, m *machine.Machine) { list = m.All() })
	err := k.release(ctx, list)
	k.owns(0)
	if err == nil {
		_, err = k.q.Exec(ctx, e.sql.leave, e.owner)
	}
	if err != nil {
		// Cause: the database.
		// Cure: other forwarders take the lanes after LeaseTTL.
		e.logger.Error("could not release lanes: they are free when the lease expires", err,
			watermill.LogFields{"lease": e.cfg.LeaseTTL.String()})
	}
}

// extend allows publishing for another lease period, counted from when the renewal began.
func (e *engine) extend(begun time.Time) {
	e.step(func(_ time.Time, m *machine.Machine) { m.Renewed(begun) })
	e.lapse.Reset(time.Until(begun.Add(e.cfg.LeaseTTL)))
}

// recall takes back messages that no handler has received yet, because the lease is over: others deliver them.
func (e *engine) recall() {
	var calls []*board.Call
	e.step(func(_ time.Time, m *machine.Machine) { calls = m.InFlight() })
	for _, c := range calls {
		contextOf(c).recall()
	}
}
