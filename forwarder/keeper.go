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
	// leaveTimeout bounds giving the lanes back; if it fails the lease runs out by itself.
	leaveTimeout = 5 * time.Second
	// waitInterval is how often one that waits for others to leave looks whether they have.
	waitInterval = time.Second
)

// keeper is the goroutine that keeps the lease, and takes and gives lanes so that each live forwarder has its share.
// Only it writes lanes in the database, and only it touches these fields.
type keeper struct {
	e      *engine
	q      drive.Querier // a connection that handlers cannot starve
	joined bool          // no other scope may read our topics
	unsure bool          // the lease ran out since lanes were last read: others may have taken some of ours
	waits  waitReport
	short  int             // plans in a row that found lanes missing to our share
	owned  int             // lanes, as it was last reported
	had    map[int16]int64 // the highest epoch of each lane that was ours
	seen   sightings       // of the leases of others
	told   string          // of itself
	facts  trouble.Log     // of telling it
}

func (k *keeper) keep(ctx context.Context) {
	// Cause: the database.
	// Cure: if statements are slow, raise LeaseTTL; when the lease ends, other forwarders take the lanes.
	report := trouble.Log{Logger: k.e.logger, What: "renewing the lease"}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-k.e.leaseNow:
		}
		// Not cut off at the end: a cancellation that comes late may hit the statement that gives everything back.
		wait, err := k.balance(context.WithoutCancel(ctx))
		if ctx.Err() != nil {
			return
		}
		report.Tell(err)
		if err != nil {
			wait = k.soon()
		}
		timer.Reset(wait)
	}
}

// balance renews the lease, gives back what is free, carries out the plan for the others, and writes what the forwarder
// says of itself. It returns when to look again.
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
		if _, err := k.members(ctx); err != nil { // one that is dead may be in our way
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
	if k.unsure { // not before the lanes are forgotten that others took meanwhile
		k.unsure = false
		e.recall()
		e.extend(begun)
	}
	next, err := k.take(ctx, p)
	if err != nil {
		return 0, err
	}
	err = k.tell(ctx) // last, as no lane is to wait for it
	if k.facts.Tell(err); err != nil {
		next = min(next, k.soon())
	}
	return min(next, max(0, e.cfg.LeaseTTL/3-time.Since(begun))), nil // a database that is slow shortens no lease
}

// renew renews the lease, or joins anew if it has run out, which takes the time that it takes: there is nothing to
// lose. It says when the lease began that there is now.
func (k *keeper) renew(ctx context.Context, stopping bool) (begun time.Time, err error) {
	begun, renewed, err := k.heartbeat(ctx, stopping)
	if err != nil {
		return begun, err
	}
	if !renewed {
		k.joined = false // whatever becomes of joining anew: the answer to it may be lost, and it may be to wait
	}
	if k.joined {
		return begun, nil
	}
	k.unsure = true
	if err := k.register(ctx); err != nil || !k.joined {
		return begun, err
	}
	begun, renewed, err = k.heartbeat(ctx, stopping) // most of the lease may be over
	if err == nil && !renewed {
		k.joined = false
		err = fmt.Errorf("the lease of %s expired while the forwarder joined: the database answers slowly: raise LeaseTTL",
			k.e.cfg.LeaseTTL)
	}
	return begun, err
}

// heartbeat renews the lease unless it has run out.
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

// soonDone bounds what must not keep the lease from being renewed. While there is none there is more time: what is cut
// off takes the connection with it, and a new one is slower than any.
func (k *keeper) soonDone(ctx context.Context) (context.Context, context.CancelFunc) {
	most := max(k.e.cfg.LeaseTTL/3, time.Second)
	k.e.step(func(now time.Time, m *machine.Machine) {
		if !m.Leased(now) {
			most = max(most, min(5*most, k.e.cfg.QueryTimeout))
		}
	})
	return context.WithTimeout(ctx, most)
}

// soon is when to try again what failed.
func (k *keeper) soon() time.Duration { return min(k.e.cfg.LeaseTTL/10, time.Second) }

// take takes what the plan says.
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

// owns says how many lanes are owned now.
func (k *keeper) owns(lanes int) {
	if lanes != k.owned {
		k.owned = lanes
		say := k.e.logger.Info
		if k.e.pooled { // it comes and goes
			say = k.e.logger.Debug
		}
		say("lanes owned", watermill.LogFields{"lanes": lanes})
		k.e.obs.owned(lanes)
	}
}

// lookAgain is when to look again after others took what we wanted to.
const lookAgain = 50 * time.Millisecond

// giveBack releases the lanes of which nothing is under way any more.
func (k *keeper) giveBack(ctx context.Context) error {
	var free []board.Term
	k.e.step(func(_ time.Time, m *machine.Machine) { free = m.Free() })
	return k.release(ctx, free)
}

// stepAside drops the lanes of a forwarder that came back late and must wait for others now.
func (k *keeper) stepAside(ctx context.Context) error {
	var list []board.Term
	k.e.step(func(_ time.Time, m *machine.Machine) { list = m.SteppedAside() })
	k.owns(0)
	return k.release(ctx, list)
}

// leave gives everything back at once, so that no other has to wait for the lease to run out.
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
		// Cure: none: other forwarders take the lanes after LeaseTTL.
		e.logger.Error("could not release lanes: they are free when the lease expires", err,
			watermill.LogFields{"lease": e.cfg.LeaseTTL.String()})
	}
}

// extend allows publishing for another lease time after the renewal began.
func (e *engine) extend(begun time.Time) {
	e.step(func(_ time.Time, m *machine.Machine) { m.Renewed(begun) })
	e.lapse.Reset(time.Until(begun.Add(e.cfg.LeaseTTL)))
}

// recall takes back what no handler has received yet, as the lease is over: others deliver it.
func (e *engine) recall() {
	var calls []*board.Call
	e.step(func(_ time.Time, m *machine.Machine) { calls = m.UnderWay() })
	for _, c := range calls {
		contextOf(c).recall()
	}
}
