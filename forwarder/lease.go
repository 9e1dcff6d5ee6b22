package forwarder

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/schema"
)

const (
	// leaveTimeout bounds giving the lanes back; if it fails the lease runs out by itself.
	leaveTimeout = 5 * time.Second
	// firstShortfall is when to look again for lanes that are ours to have; then it doubles.
	firstShortfall = 50 * time.Millisecond
	// forgetAfter is after how many lease times a dead forwarder's row is deleted.
	forgetAfter = 10
)

// register writes the heartbeat row, unless another forwarder reads some of the same topics in another scope.
func (e *engine) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	topics := topicsArg(e.cfg.Topics)
	err := e.db.Transact(ctx, func(q schema.Querier) error {
		if _, err := q.Exec(ctx, e.sql.lock); err != nil {
			return err
		}
		var conflict error
		err := schema.Collect(ctx, q, func(rows schema.Rows) error {
			var scope, name, theirs string
			if err := rows.Scan(&scope, &name, &theirs); err != nil {
				return err
			}
			if theirs == "" {
				theirs = "all topics"
			}
			conflict = fmt.Errorf("%w: %s has scope %q with %s", ErrTopicsOverlap, name, scope, theirs)
			return nil
		}, e.sql.conflict, e.owner, e.cfg.Scope, topics)
		if err != nil || conflict != nil {
			return firstError(err, conflict)
		}
		if _, err := q.Exec(ctx, e.sql.join, e.owner, e.cfg.Scope, topics, e.cfg.Name, e.cfg.LeaseTTL.Seconds()); err != nil {
			return err
		}
		_, err = q.Exec(ctx, e.sql.createLanes, e.cfg.Scope)
		return err
	})
	if err != nil {
		return fmt.Errorf("register forwarder: %w", err)
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// keepLease renews the lease, and takes and gives lanes so that each live forwarder has its share.
func (e *engine) keepLease(ctx context.Context, q schema.Querier) {
	report := errorLog{logger: e.logger, what: "Renewing the lease"}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-e.leaseNow:
		}
		wait, err := e.balance(ctx, q)
		if ctx.Err() != nil {
			return
		}
		report.report(err)
		if err != nil {
			wait = min(e.cfg.LeaseTTL/10, time.Second)
		}
		timer.Reset(wait)
	}
}

// balance renews the lease, gives back what is drained, and takes what is free up to our share. It returns
// when to look again.
func (e *engine) balance(ctx context.Context, q schema.Querier) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, max(e.cfg.LeaseTTL/3, time.Second))
	defer cancel()
	e.mu.Lock()
	leaving := e.stopping
	e.mu.Unlock()
	begun := time.Now()
	renewed, err := q.Exec(ctx, e.sql.heartbeat, e.owner, e.cfg.LeaseTTL.Seconds(), leaving)
	if err != nil {
		return 0, fmt.Errorf("renew lease: %w", err)
	}
	if renewed == 0 {
		if err := e.register(ctx); err != nil {
			return 0, err
		}
	}
	if renewed > 0 {
		e.extend(begun)
	}
	if err := e.giveBack(ctx, q); err != nil {
		return 0, err
	}
	share, firstExpiry, err := e.countMembers(ctx, q)
	if err != nil {
		return 0, err
	}
	if leaving {
		share = 0 // the others need not wait for what is still being published in other lanes
	}
	states, err := e.readLanes(ctx, q)
	if err != nil {
		return 0, err
	}
	short, err := e.takeLanes(ctx, q, share, states)
	if err != nil {
		return 0, err
	}
	if renewed == 0 {
		e.extend(begun) // not before the lanes are forgotten that somebody took meanwhile
	}
	next := e.cfg.LeaseTTL / 3
	if firstExpiry > 0 {
		// Be there when a vanished forwarder's lease runs out. One that is alive has renewed it by then.
		next = min(next, firstExpiry+20*time.Millisecond)
	}
	if !short {
		e.shortfalls = 0
		return next, nil
	}
	e.shortfalls++ // somebody is about to give lanes back, or cannot for long
	return min(next, firstShortfall<<min(e.shortfalls-1, 20)), nil
}

// extend allows publishing for another lease time after the renewal began.
func (e *engine) extend(begun time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leaseUntil = begun.Add(e.cfg.LeaseTTL)
	e.startWorkers()
}

// countMembers returns how many lanes are ours to have, and when the first other lease runs out.
func (e *engine) countMembers(ctx context.Context, q schema.Querier) (share int, firstExpiry time.Duration, err error) {
	rank, n := 0, 0
	err = schema.Collect(ctx, q, func(rows schema.Rows) error {
		var id string
		var left float64
		if err := rows.Scan(&id, &left); err != nil {
			return err
		}
		if id == e.owner {
			rank = n
		} else if d := time.Duration(left * float64(time.Second)); firstExpiry == 0 || d < firstExpiry {
			firstExpiry = d
		}
		n++
		return nil
	}, e.sql.members, e.cfg.Scope)
	if err != nil {
		return 0, 0, fmt.Errorf("count forwarders: %w", err)
	}
	share = laneCount / max(n, 1)
	if rank < laneCount%max(n, 1) {
		share++
	}
	return share, firstExpiry, nil
}

// offerDrained has lanes given back that have become free of work. It is called under mu.
func (e *engine) offerDrained() {
	if e.draining && len(e.board.drained()) > 0 {
		signal(e.leaseNow)
	}
}

// leave gives everything back at once, so that nobody has to wait for the lease to run out.
func (e *engine) leave(q schema.Querier) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	e.mu.Lock()
	var list []*lane
	for _, l := range e.board.lanes {
		list = append(list, l)
	}
	for number, epoch := range e.newLanes { // taken, and never read
		list = append(list, &lane{number: number, epoch: epoch})
	}
	e.mu.Unlock()
	err := e.release(ctx, q, list)
	if err == nil {
		_, err = q.Exec(ctx, e.sql.leave, e.owner, (forgetAfter * e.cfg.LeaseTTL).Seconds())
	}
	if err != nil {
		e.logger.Error("The lanes could not be given back; they are free when the lease runs out", err,
			watermill.LogFields{"lease": e.cfg.LeaseTTL.String()})
	}
}
