package forwarder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
	"github.com/millrace-go/watermill-outbox/observe"
)

const rowsPerStep = 1024 // that are added before others get the lock: a millisecond or two

// reader is the goroutine that does all reads. Only it uses these fields.
type reader struct {
	e             *engine
	q             drive.Querier // nil = not connected
	close         func()        // nil = q is the pool
	loading       map[int16]*loading
	rows          int // that the last read returned
	timeoutFactor int // how often the time for payloads was doubled because the first of them did not arrive in time
}

// read reads until ctx ends.
func (e *engine) read(ctx context.Context) {
	r := &reader{e: e, loading: map[int16]*loading{}}
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 100*time.Millisecond, 5*time.Second
	// Cause: the database.
	// Cure: nothing is published.
	report := trouble.RetryLog{Logger: e.logger, What: "reading the outbox"}
	defer r.disconnect()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		plan := r.plan()
		if plan.Wait > 0 && len(plan.Load) == 0 {
			timer.Reset(plan.Wait)
			select {
			case <-ctx.Done():
			case <-e.readNow:
			case <-timer.C:
			}
			continue
		}
		req, err := r.once(ctx, plan)
		if err == nil {
			retry.Reset()
		} else {
			pause := retry.NextBackOff()
			e.step(func(now time.Time, m *machine.Machine) { m.ReadFailed(now, req, timedOut(err), pause) })
		}
		if ctx.Err() != nil {
			return
		}
		if report.Report(err); errors.Is(err, ErrStandby) { // others may lead to the primary
			r.disconnect()
			e.db.Reset()
		}
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
	if r.q, r.close, err = r.e.db.ReaderConn(ctx); err != nil {
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

// plan returns whether and what to read.
func (r *reader) plan() (p machine.ReadPlan) {
	r.e.step(func(now time.Time, m *machine.Machine) { p = m.PlanRead(now, r.e.dirty.Load()) })
	return p
}

// once loads some blocked keys of newly taken lanes, if there are any, and does one read. After an error it returns the
// request to be taken back, if there is one.
func (r *reader) once(ctx context.Context, plan machine.ReadPlan) (*machine.ReadRequest, error) {
	if err := r.connect(ctx); err != nil {
		return nil, err
	}
	if err := r.loadHeads(ctx, plan.Load); err != nil {
		return nil, err
	}
	if plan.Writers {
		r.raise(ctx)
	}
	req, ok := r.begin()
	if !ok {
		return nil, nil
	}
	begun := time.Now()
	ans, err := r.e.fetch(ctx, r.q, r.close != nil, &req, r.rows+r.rows/4)
	if errors.Is(err, errNoLife) {
		if err = r.beginLife(ctx); err == nil {
			ans, err = r.e.fetch(ctx, r.q, r.close != nil, &req, 0)
		}
	}
	ans.Took = time.Since(begun)
	var late error
	if err == nil && ans.large {
		late = r.payloads(ctx, &req, &ans)
	}
	if err != nil {
		r.e.obs.read(observe.ReadEnd{Duration: ans.Took, Err: err})
		return &req, fmt.Errorf("read outbox: %w", err)
	}
	r.e.obs.clock(ans.at, begun)
	if err := r.end(req, ans.ReadAnswer, begun); err != nil || late == nil {
		return nil, err
	}
	return nil, fmt.Errorf("read large messages: %w", late)
}

// beginLife creates the identity of a new incarnation.
func (r *reader) beginLife(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.e.cfg.QueryTimeout)
	defer cancel()
	_, err := r.q.Exec(ctx, r.e.sql.beginLife)
	return err
}

// begin returns the read request, if there is a lane to read from.
func (r *reader) begin() (req machine.ReadRequest, ok bool) {
	ranges := r.close != nil // a plan that is made again for each statement may choose another index for a range
	r.e.step(func(now time.Time, m *machine.Machine) {
		if req, ok = m.ReadBegins(now, ranges); ok {
			r.e.dirty.Store(false)
		}
	})
	return req, ok
}

// end applies a complete answer, or none of it. A large one takes several steps, because workers wait for each of them.
func (r *reader) end(req machine.ReadRequest, ans machine.ReadAnswer, begun time.Time) (err error) {
	e := r.e
	over, added := time.Now(), 0
	r.rows = len(ans.Read.Ready)
	e.step(func(now time.Time, m *machine.Machine) {
		if m.ReadAnswered(now, &req, &ans) {
			err = errNewLife
		}
	})
	for err == nil && ans.HasPart(&req, rowsPerStep) {
		e.step(func(now time.Time, m *machine.Machine) { m.PartRead(now, &ans, rowsPerStep) })
	}
	if err == nil {
		e.step(func(now time.Time, m *machine.Machine) { added = m.ReadEnds(now, &req, &ans).Added })
	}
	e.obs.read(observe.ReadEnd{Rows: added, Duration: over.Sub(begun), Err: err})
	return err
}
