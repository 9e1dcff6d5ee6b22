package forwarder

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/schema"
)

const (
	// leaveTimeout bounds giving the lanes back; if it fails the lease runs out by itself.
	leaveTimeout = 5 * time.Second
	// firstShortfall is when to look again for lanes that are ours to have; then it doubles.
	firstShortfall = 50 * time.Millisecond
	// waitReportInterval is how often a forwarder says that it waits for others to leave.
	waitReportInterval = time.Minute
)

// waitReport is what was last said about forwarders that this one waits for.
type waitReport struct {
	since, said time.Time // zero = it does not wait
}

// register writes the heartbeat row, and joins the forwarders of the scope unless others must leave first: those that
// read some of the same topics under another scope, or other topics under the same one.
func (e *engine) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	var ahead []string
	err := e.db.Transact(ctx, func(q schema.Querier) error {
		if _, err := q.Exec(ctx, e.sql.lock); err != nil {
			return err
		}
		if _, err := q.Exec(ctx, e.sql.announce, e.owner, e.cfg.Scope, topicsArg(e.cfg.Topics), e.cfg.Name, e.cfg.LeaseTTL.Seconds()); err != nil {
			return err
		}
		err := schema.Collect(ctx, q, func(rows schema.Rows) error {
			var scope, name, topics string
			var waits bool
			if err := rows.Scan(&scope, &name, &topics, &waits); err != nil {
				return err
			}
			if topics == "" {
				topics = "all topics"
			}
			if waits {
				topics += ", which waits as well, for longer"
			}
			ahead = append(ahead, fmt.Sprintf("%s (scope %s with %s)", name, scope, topics))
			return nil
		}, e.sql.ahead, e.owner)
		if err != nil || len(ahead) > 0 {
			return err
		}
		if _, err := q.Exec(ctx, e.sql.join, e.owner); err != nil {
			return err
		}
		_, err = q.Exec(ctx, e.sql.createLanes, e.cfg.Scope)
		return err
	})
	if err != nil {
		return fmt.Errorf("register forwarder: %w", err)
	}
	e.joined = len(ahead) == 0
	e.sayWaiting(ahead)
	return nil
}

// sayWaiting logs what the forwarder waits for, at once and then each minute.
func (e *engine) sayWaiting(ahead []string) {
	w, now := &e.waits, time.Now()
	switch {
	case e.joined && w.since.IsZero():
	case e.joined:
		e.logger.Info("The other forwarders have left: this one starts", watermill.LogFields{"waited": now.Sub(w.since).String()})
		*w = waitReport{}
	case now.Sub(w.said) >= waitReportInterval:
		if w.said = now; w.since.IsZero() {
			w.since = now
		}
		e.logger.Info("WAITING: other forwarders read some of the same topics; this one starts when they have left, and publishes nothing until then",
			watermill.LogFields{"for": strings.Join(ahead, "; "), "waited": now.Sub(w.since).String()})
	}
}

// stepAside drops the lanes of a forwarder that came back late and must wait for others now.
func (e *engine) stepAside(ctx context.Context, q schema.Querier) error {
	e.mu.Lock()
	e.share, e.owned, e.draining = -1, 0, false
	e.leaseUntil = time.Time{}
	list := e.allLanes()
	for _, l := range list {
		e.board.loseLane(l)
	}
	clear(e.loading)
	e.mu.Unlock()
	return e.release(ctx, q, list)
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
	if renewed == 0 || !e.joined {
		if err := e.register(ctx); err != nil {
			return 0, err
		}
		if !e.joined {
			return min(e.cfg.LeaseTTL/3, time.Second), e.stepAside(ctx, q)
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

// allLanes returns the lanes that are ours, also those that were taken and never read. It is called under mu.
func (e *engine) allLanes() []*lane {
	list := slices.Collect(maps.Values(e.board.lanes))
	for number, load := range e.loading {
		list = append(list, &lane{number: number, epoch: load.epoch})
	}
	return list
}

// leave gives everything back at once, so that nobody has to wait for the lease to run out.
func (e *engine) leave(q schema.Querier) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	e.mu.Lock()
	list := e.allLanes()
	e.mu.Unlock()
	err := e.release(ctx, q, list)
	if err == nil {
		_, err = q.Exec(ctx, e.sql.leave, e.owner)
	}
	if err != nil {
		e.logger.Error("The lanes could not be given back; they are free when the lease runs out", err,
			watermill.LogFields{"lease": e.cfg.LeaseTTL.String()})
	}
}
