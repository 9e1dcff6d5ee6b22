package forwarder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/window"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
	"github.com/millrace-go/watermill-outbox/observe"
)

const (
	restAtMost  = 20 * time.Millisecond // between reads that commits ask for
	rowsPerStep = 1024                  // that are taken over before others have their turn: a millisecond or two
)

// reader is the goroutine that does all reads. Only it touches these fields.
type reader struct {
	e       *engine
	q       drive.Querier // nil = not connected
	close   func()        // nil = it is the pool
	loading map[int16]*loading
	more    bool      // the last read did not reach the end
	poll    time.Time // when to read unasked
	dueAt   time.Time // when to look for delayed messages
	ofDue   pace
	raiseAt time.Time // when to look which long transactions have not written
	nextTry time.Time // after an error
	ended   time.Time
	took    time.Duration // without payloads that were read afterwards
	rows    int           // that the last read returned
	tardy   int           // how often the time for payloads was doubled, as the first of them did not come in it
}

// read reads until ctx is over.
func (e *engine) read(ctx context.Context) {
	r := &reader{e: e, loading: map[int16]*loading{}}
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 100*time.Millisecond, 5*time.Second
	// Cause: the database does not answer, or refuses the role.
	// Cure: check the database; nothing is published until it works.
	report := trouble.Log{Logger: e.logger, What: "reading the outbox"}
	defer r.disconnect()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		if wait := r.wait(); wait > 0 {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
			case <-e.readNow:
			case <-timer.C:
			}
			continue
		}
		err := r.once(ctx)
		if ctx.Err() != nil {
			return
		}
		report.Tell(err)
		switch {
		case err == nil:
			retry.Reset()
			continue
		case errors.Is(err, ErrStandby): // others may lead to the primary
			r.disconnect()
			e.db.Reset()
		}
		e.step(func(now time.Time) {
			r.nextTry = now.Add(retry.NextBackOff())
			if e.quiet, e.asking = (time.Time{}), (time.Time{}); e.failing.IsZero() {
				e.failing = now
			}
		})
	}
}

func (r *reader) connect(ctx context.Context) (err error) {
	if r.q != nil {
		return nil
	}
	if r.e.pooled {
		r.q = r.e.db
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.e.cfg.QueryTimeout)
	defer cancel()
	if r.q, r.close, err = r.e.db.Reading(ctx); err != nil {
		return fmt.Errorf("open a connection for reading: %w", err)
	}
	return nil
}

func (r *reader) disconnect() {
	if r.close != nil {
		r.close()
	}
	r.q, r.close = nil, nil
}

// wait returns how long to wait before the next read; 0 = read now.
func (r *reader) wait() (wait time.Duration) {
	e := r.e
	e.step(func(now time.Time) {
		at := r.next(now)
		if at.Before(r.nextTry) {
			at = r.nextTry
		}
		e.readAt = at
		wait = max(0, at.Sub(now))
	})
	return wait
}

func (r *reader) next(now time.Time) time.Time {
	e := r.e
	owns := len(r.loading) > 0
	for _, l := range e.lanes {
		if l.state == taken {
			return now
		}
		owns = owns || l.state == reading
	}
	if !owns {
		return now.Add(time.Hour) // lanes that are taken wake us
	}
	next := r.poll
	sooner := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if e.asked || len(r.loading) > 0 {
		sooner(now)
	}
	if _, due := e.board.Due(); !due.IsZero() {
		sooner(due)
	}
	if e.board.HasRoom() {
		if r.more {
			sooner(now)
		}
		if e.dirty.Load() {
			// A read per commit would cost more than it finds: rest as long as the last one took.
			sooner(r.ended.Add(min(r.took, restAtMost)))
		}
	}
	return next
}

// once loads some blocked keys of lanes that were taken, if there are any, and does one read.
func (r *reader) once(ctx context.Context) error {
	if err := r.connect(ctx); err != nil {
		return err
	}
	if err := r.loadHeads(ctx); err != nil {
		return err
	}
	r.raise(ctx)
	req, ok := r.begin()
	if !ok {
		return nil
	}
	begun := time.Now()
	ans, err := r.e.fetch(ctx, r.q, &req, r.rows+r.rows/4)
	if errors.Is(err, errNoLife) {
		if err = r.beginLife(ctx); err == nil {
			ans, err = r.e.fetch(ctx, r.q, &req, 0)
		}
	}
	r.took = time.Since(begun)
	var late error
	if err == nil && ans.large {
		late = r.payloads(ctx, &req, &ans)
	}
	r.ended = time.Now()
	r.poll = r.ended.Add(r.e.cfg.PollInterval)
	if err != nil {
		r.more = true
		r.e.failed(req, err)
		r.e.obs.read(observe.ReadEnd{Duration: r.took, Err: err})
		return fmt.Errorf("read outbox: %w", err)
	}
	r.e.obs.clock(ans.at, begun)
	ans.Took = r.took
	if err := r.end(req, ans, begun); err != nil || late == nil {
		return err
	}
	return fmt.Errorf("read large messages: %w", late)
}

// beginLife gives a life its name.
func (r *reader) beginLife(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.e.cfg.QueryTimeout)
	defer cancel()
	_, err := r.q.Exec(ctx, r.e.sql.beginLife)
	return err
}

// request is what a read asks for.
type request struct {
	number int64
	asks   board.Asks
	window window.Request
	due    bool // also what fell due
}

// begin says what to read, if there is anything to read from.
func (r *reader) begin() (req request, ok bool) {
	e := r.e
	e.step(func(now time.Time) {
		for _, l := range e.lanes {
			ok = ok || l.state == reading
		}
		if !ok {
			return
		}
		e.dirty.Store(false)
		e.asked = false
		e.asking = now
		e.reads++
		req.number = e.reads
		req.asks = e.board.ReadBegins(now)
		for _, back := range req.asks.Rewinds {
			if _, epoch := e.window.Mark(back.Term.Lane); epoch == back.Term.Epoch {
				e.window.Rewind(back.Term.Lane, back.To)
			}
		}
		ranges := r.close != nil // a plan that is made anew each time may take another index for one
		if req.due = !now.Before(r.dueAt) || len(e.drains) > 0; req.due {
			for _, n := range req.asks.Due {
				req.asks.Room.Others += int(n)
			}
		}
		req.window = e.window.Next(window.Room(req.asks.Room), ranges, func(lane int16, mark int64) (above, all int) {
			return e.board.Known(board.Term{Lane: lane, Epoch: e.lanes[lane].epoch}, mark)
		})
	})
	return req, ok
}

// end takes over a complete answer, or none of it. A large one is several steps, as workers wait for each of them.
func (r *reader) end(req request, ans answer, begun time.Time) (err error) {
	e := r.e
	added, read := 0, len(ans.read.Ready)
	var p window.Progress
	e.step(func(now time.Time) {
		if p = e.window.Complete(req.window, ans.Answer); p.Life == window.Changed {
			e.newLife()
			e.board.ReadFailed(now, req.asks)
			err = errNewLife
		}
	})
	for err == nil && len(req.asks.IDs) == 0 && len(ans.read.Ready) > rowsPerStep {
		e.step(func(now time.Time) { added += e.board.PartRead(now, ans.read.Ready[:rowsPerStep]) })
		ans.read.Ready = ans.read.Ready[rowsPerStep:]
	}
	e.step(func(now time.Time) {
		if err != nil {
			return
		}
		b := e.board.RowsRead(now, req.asks, e.answered(req, ans))
		added += b.Added
		r.more = p.More || b.More
		r.rows = read
		if req.due {
			// Looking for what fell due walks what is delayed; it may use about a twentieth of the time.
			r.dueAt = begun.Add(max(e.cfg.PollInterval, r.ofDue.rest(r.took)))
			if b.ManyDue { // all that it found is new, or nearly
				r.dueAt = begun.Add(2 * r.took)
				r.poll = r.dueAt
			}
		}
		e.failing, e.asking = time.Time{}, time.Time{}
		quiet, paused := e.board.QuietButPaused()
		quiet = quiet && added == 0 && !r.more && e.complete()
		switch {
		case !quiet || len(paused) > 0:
			e.quiet = time.Time{}
		case e.quiet.IsZero():
			e.quiet = now
		}
		if quiet {
			e.endDrains(req.number, errPaused(paused))
		}
	})
	e.obs.read(observe.ReadEnd{Rows: added, Duration: r.ended.Sub(begun), Err: err})
	return err
}
