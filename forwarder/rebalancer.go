package forwarder

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lease"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

const (
	// leaveTimeout bounds the release of the lanes; if it fails, the lease expires on its own.
	leaveTimeout = 5 * time.Second
	// waitInterval is how often a forwarder that waits for others to leave checks whether they have.
	waitInterval = time.Second
)

// rebalancer is the goroutine that renews the lease, and takes and releases lanes so that each live forwarder has its
// share. Only it writes lanes in the database, and only it uses these fields.
type rebalancer struct {
	e           *engine
	q           drive.Querier // a connection that handlers cannot starve
	joined      bool          // no other scope may read our topics
	mayHaveLost bool          // the lease expired since lanes were last read: others may have taken some of ours
	waits       waitReport
	short       int              // consecutive plans in which lanes were missing from our share
	owned       int              // number of lanes last reported
	epochs      map[int16]int64  // the highest epoch of each lane that was ours
	seen        seenLeases       // leases of other forwarders
	written     string           // facts that the database has; empty = unknown, because no response has arrived
	facts       trouble.RetryLog // failures to write them
}

func (r *rebalancer) run(ctx context.Context) {
	// Cause: the database.
	// Cure: raise LeaseTTL if statements are slow; when it is over, other forwarders take the lanes.
	report := trouble.RetryLog{Logger: r.e.logger, What: "renewing the lease"}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.e.rebalanceNow:
		}
		// Not cancelled at the end: a late cancellation could hit the statement that releases everything.
		wait, err := r.rebalance(context.WithoutCancel(ctx))
		if ctx.Err() != nil {
			return
		}
		report.Report(err)
		if err != nil {
			wait = r.retryIn()
		}
		timer.Reset(wait)
	}
}

// rebalance renews the lease, releases free lanes, carries out the plan for the others, and writes the facts about this
// forwarder. It returns when to run again.
func (r *rebalancer) rebalance(ctx context.Context) (time.Duration, error) {
	e := r.e
	stopping := false
	e.step(func(_ time.Time, c *coordinator.Coordinator) { stopping = c.Stopping() })
	begun, err := r.renew(ctx, stopping)
	if err != nil {
		return 0, err
	}
	ctx, cancel := r.withinLease(ctx)
	defer cancel()
	if !r.joined {
		if _, err := r.members(ctx); err != nil { // a dead one may be in our way
			return 0, err
		}
		return min(e.cfg.LeaseTTL/3, waitInterval), r.dropLanes(ctx)
	}
	if !r.mayHaveLost {
		e.extend(begun)
	}
	if err := r.releaseFree(ctx); err != nil {
		return 0, err
	}
	members, err := r.members(ctx)
	if err != nil {
		return 0, err
	}
	list, err := r.allLanes(ctx)
	if err != nil {
		return 0, err
	}
	var p lease.Plan
	e.step(func(_ time.Time, c *coordinator.Coordinator) { p = c.MembersRead(members, list, r.short) })
	if r.mayHaveLost { // only after lanes that others took meanwhile are dropped
		r.mayHaveLost = false
		e.recall()
		e.extend(begun)
	}
	next, err := r.take(ctx, p)
	if err != nil {
		return 0, err
	}
	err = r.writeFacts(ctx) // last, because no lane may wait for it
	if r.facts.Report(err); err != nil {
		next = min(next, r.retryIn())
	}
	return min(next, max(0, e.cfg.LeaseTTL/3-time.Since(begun))), nil // a slow database shortens no lease
}

// renew renews the lease. If it has expired it joins again, with no time limit, because there is nothing left to lose.
// It returns when the current lease began.
func (r *rebalancer) renew(ctx context.Context, stopping bool) (begun time.Time, err error) {
	begun, renewed, err := r.heartbeat(ctx, stopping)
	if err != nil {
		return begun, err
	}
	if !renewed {
		r.joined = false // even if joining again fails: its answer may be lost, or it may have to wait
	}
	if r.joined {
		return begun, nil
	}
	r.mayHaveLost = true
	if err := r.register(ctx); err != nil || !r.joined {
		return begun, err
	}
	begun, renewed, err = r.heartbeat(ctx, stopping) // most of the lease may have passed
	if err == nil && !renewed {
		r.joined = false
		err = fmt.Errorf("the lease of %s expired while the forwarder joined: the database responds slowly: raise "+
			"LeaseTTL",
			r.e.cfg.LeaseTTL)
	}
	return begun, err
}

// heartbeat renews the lease. It does not if the lease has expired, or if the server has lost the commit with which the
// forwarder joined.
func (r *rebalancer) heartbeat(ctx context.Context, stopping bool) (begun time.Time, renewed bool, err error) {
	ctx, cancel := r.withinLease(ctx)
	defer cancel()
	begun = time.Now()
	n, err := r.q.Exec(ctx, r.e.sql.heartbeat, r.e.owner, r.e.cfg.LeaseTTL.Seconds(), stopping, r.joined)
	if err != nil {
		return begun, false, fmt.Errorf("renew lease: %w", err)
	}
	return begun, n > 0, nil
}

// withinLease bounds work that must not delay the renewal of the lease. Without a lease the limit is longer: a timeout
// closes the connection, and opening a new one is slower than any statement.
func (r *rebalancer) withinLease(ctx context.Context) (context.Context, context.CancelFunc) {
	most := max(r.e.cfg.LeaseTTL/3, time.Second)
	r.e.step(func(now time.Time, c *coordinator.Coordinator) {
		if !c.Leased(now) {
			most = max(most, min(5*most, r.e.cfg.QueryTimeout))
		}
	})
	return context.WithTimeout(ctx, most)
}

// retryIn returns when to retry after a failure.
func (r *rebalancer) retryIn() time.Duration { return min(r.e.cfg.LeaseTTL/10, time.Second) }

// take takes the lanes of the plan.
func (r *rebalancer) take(ctx context.Context, p lease.Plan) (next time.Duration, err error) {
	e := r.e
	r.short, next = p.Short, p.Next
	if err := r.takeLanes(ctx, e.sql.retake, p.Retake); err != nil {
		return 0, err
	}
	if err := r.takeLanes(ctx, e.sql.take, p.Take); err != nil {
		return 0, err
	}
	owned, missing := 0, false
	e.step(func(_ time.Time, c *coordinator.Coordinator) { owned, missing = c.Owned() })
	if missing && p.Short == 0 { // another was faster
		next = min(next, takeAgain)
	}
	r.reportOwned(owned)
	select {
	case <-e.running:
	default:
		close(e.running)
	}
	return next, nil
}

// reportOwned reports the number of lanes owned now.
func (r *rebalancer) reportOwned(lanes int) {
	if lanes != r.owned {
		r.owned = lanes
		say := r.e.logger.Info
		if r.e.pooled { // it is temporary
			say = r.e.logger.Debug
		}
		say("lanes owned", watermill.LogFields{"lanes": lanes})
		r.e.obs.owned(lanes)
	}
}

// takeAgain is when to check again after others took lanes that we wanted.
const takeAgain = 50 * time.Millisecond

// releaseFree releases the lanes that have nothing in flight any more.
func (r *rebalancer) releaseFree(ctx context.Context) error {
	var free []dispatch.Assignment
	r.e.step(func(_ time.Time, c *coordinator.Coordinator) { free = c.Free() })
	return r.release(ctx, free)
}

// dropLanes drops the lanes of a forwarder that came back late and now has to wait for others.
func (r *rebalancer) dropLanes(ctx context.Context) error {
	var list []dispatch.Assignment
	r.e.step(func(_ time.Time, c *coordinator.Coordinator) { list = c.JoinRefused() })
	r.reportOwned(0)
	return r.release(ctx, list)
}

// leave releases everything immediately, so that no other forwarder has to wait for the lease to expire.
func (r *rebalancer) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	e := r.e
	var list []dispatch.Assignment
	e.step(func(_ time.Time, c *coordinator.Coordinator) { list = c.Assignments() })
	err := r.release(ctx, list)
	r.reportOwned(0)
	if err == nil {
		_, err = r.q.Exec(ctx, e.sql.leave, e.owner)
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
	e.step(func(_ time.Time, c *coordinator.Coordinator) { c.Renewed(begun) })
	e.leaseTimer.Reset(time.Until(begun.Add(e.cfg.LeaseTTL)))
}

// recall takes back messages that no handler has received yet, because the lease is over: others deliver them.
func (e *engine) recall() {
	var calls []*dispatch.Call
	e.step(func(_ time.Time, c *coordinator.Coordinator) { calls = c.InFlight() })
	for _, call := range calls {
		contextOf(call).recall()
	}
}

// takeLanes records lanes as ours, except those that another forwarder took first.
func (r *rebalancer) takeLanes(ctx context.Context, query string, list []lease.Assignment) error {
	if len(list) == 0 {
		return nil
	}
	e := r.e
	lanes, epochs := columns(list)
	had := make([]int64, len(list))
	for i, t := range list {
		had[i] = r.epochs[t.Lane]
	}
	var got []dispatch.Assignment
	err := drive.Collect(ctx, r.q, func(rows drive.Rows) error {
		var t dispatch.Assignment
		err := rows.Scan(&t.Lane, &t.Epoch)
		got = append(got, t)
		r.epochs[t.Lane] = t.Epoch
		return err
	}, query, e.cfg.Scope, e.owner, lanes, epochs, had)
	if err != nil {
		return fmt.Errorf("take lanes: %w", err)
	}
	e.step(func(_ time.Time, c *coordinator.Coordinator) { c.Took(got) })
	return nil
}

// release records lanes as free.
func (r *rebalancer) release(ctx context.Context, list []dispatch.Assignment) error {
	if len(list) == 0 {
		return nil
	}
	e := r.e
	lanes, epochs := columns(list)
	if _, err := r.q.Exec(ctx, e.sql.release, e.cfg.Scope, e.owner, lanes, epochs); err != nil {
		return fmt.Errorf("release lanes: %w", err)
	}
	e.step(func(_ time.Time, c *coordinator.Coordinator) { c.Released(list) })
	return nil
}

// allLanes reads the lanes, and recreates any that were deleted.
func (r *rebalancer) allLanes(ctx context.Context) ([]lease.Lane, error) {
	list, err := r.lanes(ctx)
	if err != nil || len(list) == lease.Lanes {
		return list, err
	}
	made, err := r.q.Exec(ctx, r.e.sql.createLanes, r.e.cfg.Scope)
	if err != nil {
		return nil, fmt.Errorf("create lanes: %w", err)
	}
	r.e.logger.Info("rows of the lanes table were missing: created again", watermill.LogFields{"lanes": made})
	return r.lanes(ctx)
}

func (r *rebalancer) lanes(ctx context.Context) (list []lease.Lane, err error) {
	err = drive.Collect(ctx, r.q, func(rows drive.Rows) error {
		var l lease.Lane
		err := rows.Scan(&l.Lane, &l.Epoch, &l.Owner, &l.Alive)
		list = append(list, l)
		return err
	}, r.e.sql.lanes, r.e.cfg.Scope)
	if err != nil {
		return nil, fmt.Errorf("read lanes: %w", err)
	}
	return list, nil
}

// columns converts assignments to arguments.
func columns(list []dispatch.Assignment) (lanes, epochs []int64) {
	for _, a := range list {
		lanes, epochs = append(lanes, int64(a.Lane)), append(epochs, a.Epoch)
	}
	return lanes, epochs
}
