package forwarder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

	"github.com/millrace-go/watermill-outbox/schema"
)

const (
	laneCount       = 64
	maxReadBytes    = 32 << 20  // in memory, as far as the sizes seen so far tell
	guessedRowBytes = 512 << 10 // before any was seen
	slowRead        = 20 * time.Millisecond
	firstSpan       = 32768 // ids past its mark over which a lane is read
	minSpan         = 4096
	maxSpan         = 1 << 40
	maxSpread       = 64
	longLag         = 1000 // rows to read again that make a look at the locks worth its cost
	raiseInterval   = 500 * time.Millisecond
)

// reader is the state of the reading goroutine, guarded by engine.mu.
type reader struct {
	tracker  tracker
	more     bool      // the last read did not reach the end
	poll     time.Time // when to read although nobody asked
	dueAt    time.Time // when to look for delayed messages
	ended    time.Time
	took     time.Duration
	rowBytes int    // moving average
	width    int    // lanes per read; fewer after a time-out
	offset   int    // the first of them
	spread   int    // factor on the limits, while reads are slow
	span     int64  // how many ids past its mark a lane is read
	life     string // of the server, as of the last read; "" = before the first
	rows     int    // that the last read returned
	suspects []wanted
	raiseAt  time.Time // when to look which long transactions have not written
	nextTry  time.Time
}

// read is the goroutine that does all reads.
func (e *engine) read(ctx context.Context) {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 100*time.Millisecond, 5*time.Second
	report := errorLog{logger: e.logger, what: "Reading the outbox"}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.readNow:
		case <-timer.C:
		}
		for {
			e.mu.Lock()
			wait := e.untilRead(time.Now())
			e.mu.Unlock()
			if wait > 0 {
				timer.Reset(wait)
				break
			}
			err := e.readOnce(ctx)
			if ctx.Err() != nil {
				return
			}
			report.report(err)
			e.mu.Lock()
			if err != nil {
				e.reader.nextTry = time.Now().Add(retry.NextBackOff())
			} else {
				retry.Reset()
			}
			e.mu.Unlock()
		}
	}
}

// hasRoom says whether enough of what was read is published, and settled, to read more.
func (e *engine) hasRoom() bool {
	want := e.rowsWanted()
	return e.board.buffered <= want/2 && e.board.unsettled <= 2*want
}

// rowsWanted is how many rows may be in memory.
func (e *engine) rowsWanted() int {
	return max(e.cfg.Concurrency, min(e.cfg.ReadAhead, maxReadBytes/max(e.reader.rowBytes, 1)))
}

// untilRead returns how long to wait before the next read; 0 = read now.
func (e *engine) untilRead(now time.Time) time.Duration {
	r := &e.reader
	switch {
	case len(e.loading) > 0:
		return max(0, r.nextTry.Sub(now))
	case len(e.board.lanes) == 0:
		return time.Hour // lanes that are taken wake us
	}
	next := r.poll
	sooner := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if e.hasRoom() {
		if r.more || len(e.board.releases) > 0 || len(r.suspects) > 0 {
			sooner(now)
		}
		if e.dirty.Load() {
			// A read per commit would cost more than it finds: rest as long as the last one took.
			sooner(r.ended.Add(min(r.took, slowRead)))
		}
	}
	if t, ok := e.board.retries.next(); ok {
		sooner(t)
	}
	for _, t := range e.board.topics {
		if t.trial == nil {
			sooner(t.until)
		}
	}
	if next.Before(r.nextTry) {
		next = r.nextTry
	}
	return max(0, next.Sub(now))
}

// readOnce does one read and takes its result over, or none of it.
func (e *engine) readOnce(ctx context.Context) error {
	if err := e.loadNewLanes(ctx); err != nil {
		return err
	}
	if !e.ownsLanes() {
		return nil
	}
	e.raiseBounds(ctx)
	e.mu.Lock()
	r := &e.reader
	begun, asked := time.Now(), len(r.suspects)
	e.dirty.Store(false)
	due := !begun.Before(r.dueAt) || e.drains > 0
	req := e.board.prepare(begun, e.rowsWanted(), r.width, r.offset, due, r.suspects)
	for i := range req.limits {
		req.limits[i].rows *= int64(max(r.spread, 1))
	}
	req.span = r.span
	args, expected := e.fetchArgs(req), r.rows+r.rows/4
	e.mu.Unlock()

	res, bytes, err := e.fetch(ctx, req, args, expected)
	if errors.Is(err, errNoLife) {
		if _, err = e.db.Exec(ctx, e.sql.beginLife); err == nil {
			res, bytes, err = e.fetch(ctx, req, args, expected)
		}
	}
	ended := time.Now()
	took := ended.Sub(begun)

	e.mu.Lock()
	defer e.mu.Unlock()
	r.ended, r.took = ended, took
	r.poll = ended.Add(e.cfg.PollInterval)
	if err == nil && r.life != "" && (res.life != r.life || res.snapshot.seq < r.tracker.seq) {
		e.restart()
		err = errors.New("the server, or its sequence of ids, was restarted, restored or replaced; reading starts again")
	}
	if err == nil {
		r.life = res.life
	}
	if err != nil {
		e.board.abandon(req, ended)
		e.readFailed(err)
		e.obs.read(ReadEnd{Took: took, Err: err})
		return fmt.Errorf("read outbox: %w", err)
	}
	r.suspects = r.suspects[asked:] // the sweep may have added some
	p := e.board.integrate(req, res, ended)
	r.tracker.observe(res.snapshot)
	r.more = p.more
	r.offset += len(req.lanes)
	r.width = min(laneCount, r.width*2)
	r.rows = len(res.ready)
	if n := r.rows + len(res.due) + len(res.byID); n > 0 {
		r.rowBytes = max(r.rowBytes/8, bytes/n)
	}
	r.adaptSpread(took, p)
	r.adaptSpan(took, p)
	if req.due != nil {
		// Looking for what fell due walks what is delayed; it may use a twentieth of the time.
		r.dueAt = begun.Add(max(e.cfg.PollInterval, 20*took))
		if slices.ContainsFunc(req.lanes, func(l *lane) bool { return l.manyDue }) {
			r.dueAt = begun.Add(20 * took)
			r.poll = r.dueAt
		}
	}
	e.obs.read(ReadEnd{Rows: p.added, Took: took})
	e.startWorkers()
	e.noteIdle(p)
	return nil
}

// raiseBounds looks which of the long transactions have not written to the outbox, so that their end does not
// make us read again all that has been written since they began.
func (e *engine) raiseBounds(ctx context.Context) {
	now := time.Now()
	e.mu.Lock()
	r := &e.reader
	skip := now.Before(r.raiseAt) || r.tracker.lag() < longLag
	if !skip {
		r.raiseAt = now.Add(raiseInterval)
	}
	e.mu.Unlock()
	if skip {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	writers := map[uint32]bool{}
	err := schema.Collect(ctx, e.db, func(rows schema.Rows) error {
		var xid int64
		err := rows.Scan(&xid)
		writers[uint32(xid)] = true
		return err
	}, e.sql.writers)
	if err != nil {
		e.logger.Debug("Long transactions could not be looked at; reading goes on without", watermill.LogFields{"err": err.Error()})
		return
	}
	e.mu.Lock()
	r.tracker.raise(writers)
	e.mu.Unlock()
}

// adaptSpread widens the limits while reads are slow and full of rows that are known already: many long
// transactions that end one after another would otherwise keep the marks from moving on.
func (r *reader) adaptSpread(took time.Duration, p progress) {
	if p.more && !p.short && p.added == 0 && took > slowRead {
		r.spread = min(maxSpread, max(r.spread, 1)*2)
	} else {
		r.spread = max(1, r.spread/2)
	}
}

// adaptSpan lets reads that have far to go take slowRead each, or a few times that: short enough that a read
// stays clear of its time-out and lets others in between, long enough that a clean index is passed in no time. But
// many long transactions that end one after another must not send the marks back faster than they move on.
func (r *reader) adaptSpan(took time.Duration, p progress) {
	switch {
	case !p.short:
		r.span = max(firstSpan, r.span/2)
	case p.rewound || took < slowRead:
		r.span = min(maxSpan, r.span*2)
	case took > 4*slowRead:
		r.span = max(minSpan, r.span/2)
	}
}

// readFailed decides what the next read must do otherwise.
func (e *engine) readFailed(err error) {
	r := &e.reader
	r.more = true
	switch {
	case errors.Is(err, ErrStandby):
		e.db.Reset()
	case timedOut(err):
		r.width = max(1, min(r.width, len(e.board.lanes))/2)
		r.span = max(minSpan, r.span/2)
	}
}

// restart forgets all that was read, because the server may not be the one that it was read from: it may lack
// its latest transactions, and have given their ids to others. What is being published is so under its
// old ids, and settled only where they mean the same message. The lanes are retaken under higher epochs, so that a
// failure of before cannot be recorded after their held keys were loaded.
func (e *engine) restart() {
	e.reader.tracker, e.reader.life, e.reader.suspects = tracker{}, "", nil
	for _, l := range e.board.lanes {
		e.board.loseLane(l)
	}
	clear(e.loading)
	signal(e.leaseNow)
}

func (e *engine) ownsLanes() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.board.lanes) > 0
}

// noteIdle counts reads after which nothing is left to do.
func (e *engine) noteIdle(p progress) {
	b := e.board
	if p.added > 0 || p.more || b.buffered > 0 || len(b.published)+len(b.failed)+len(b.releases)+len(b.topics) > 0 ||
		e.share < 0 || len(b.lanes) < e.share {
		return
	}
	for _, l := range b.lanes {
		if l.unsettled > 0 || l.draining {
			return
		}
	}
	e.idle++
	e.idleCond.Broadcast()
}
