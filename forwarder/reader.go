package forwarder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

const rowsPerStep = 1024 // that are added before others get the lock: a millisecond or two

// reader is the goroutine that does all reads. Only it uses these fields.
type reader struct {
	e             *engine
	q             drive.Querier // nil = not connected
	close         func()        // nil = q is the pool
	loading       map[int16]*loadingLane
	rows          int // that the last read returned
	timeoutFactor int // how often the time for payloads was doubled because the first of them did not arrive in time
}

// read reads until ctx ends.
func (e *engine) read(ctx context.Context) {
	r := &reader{e: e, loading: map[int16]*loadingLane{}}
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
			e.step(func(now time.Time, c *coordinator.Coordinator) { c.ReadFailed(now, req, timedOut(err), pause) })
		}
		if ctx.Err() != nil {
			return
		}
		if report.Report(err); errors.Is(err, errStandby) { // others may lead to the primary
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
func (r *reader) plan() (p coordinator.ReadPlan) {
	r.e.step(func(now time.Time, c *coordinator.Coordinator) { p = c.PlanRead(now, r.e.dirty.Load()) })
	return p
}

// once loads some blocked keys of newly taken lanes, if there are any, and does one read. After an error it returns the
// request to be taken back, if there is one.
func (r *reader) once(ctx context.Context, plan coordinator.ReadPlan) (*coordinator.ReadRequest, error) {
	if err := r.connect(ctx); err != nil {
		return nil, err
	}
	if err := r.loadBlocked(ctx, plan.Load); err != nil {
		return nil, err
	}
	if plan.Writers {
		r.checkWriters(ctx)
	}
	req, ok := r.begin()
	if !ok {
		return nil, nil
	}
	begun := time.Now()
	ans, err := r.e.fetch(ctx, r.q, r.close != nil, &req, r.rows+r.rows/4)
	if errors.Is(err, errNoIncarnation) {
		if err = r.createIncarnation(ctx); err == nil {
			ans, err = r.e.fetch(ctx, r.q, r.close != nil, &req, 0)
		}
	}
	ans.Took = time.Since(begun)
	var late error
	if err == nil && ans.large {
		late = r.payloads(ctx, &req, &ans)
	}
	if err != nil {
		r.e.obs.read(meter.ReadEnd{Duration: ans.Took, Err: err})
		return &req, fmt.Errorf("read outbox: %w", err)
	}
	r.e.obs.clock(ans.at, begun)
	if err := r.end(req, ans.ReadAnswer, begun); err != nil || late == nil {
		return nil, err
	}
	return nil, fmt.Errorf("read large messages: %w", late)
}

// createIncarnation creates the identity of a new incarnation.
func (r *reader) createIncarnation(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.e.cfg.QueryTimeout)
	defer cancel()
	_, err := r.q.Exec(ctx, r.e.sql.createIncarnation)
	return err
}

// begin returns the read request, if there is a lane to read from.
func (r *reader) begin() (req coordinator.ReadRequest, ok bool) {
	ranges := r.close != nil // a plan that is made again for each statement may choose another index for a range
	r.e.step(func(now time.Time, c *coordinator.Coordinator) {
		if req, ok = c.ReadBegins(now, ranges); ok {
			r.e.dirty.Store(false)
		}
	})
	return req, ok
}

// end applies a complete answer, or none of it. A large one takes several steps, because workers wait for each of them.
func (r *reader) end(req coordinator.ReadRequest, ans coordinator.ReadAnswer, begun time.Time) (err error) {
	e := r.e
	over, added := time.Now(), 0
	r.rows = len(ans.Read.Ready)
	e.step(func(now time.Time, c *coordinator.Coordinator) {
		if c.ReadAnswered(now, &req, &ans) {
			err = errNewIncarnation
		}
	})
	for err == nil && ans.HasPart(&req, rowsPerStep) {
		e.step(func(now time.Time, c *coordinator.Coordinator) { c.PartRead(now, &ans, rowsPerStep) })
	}
	if err == nil {
		e.step(func(now time.Time, c *coordinator.Coordinator) { added = c.ReadEnds(now, &req, &ans).Added })
	}
	e.obs.read(meter.ReadEnd{Rows: added, Duration: over.Sub(begun), Err: err})
	return err
}

// blockedPerPage is how many blocked keys one statement loads.
const blockedPerPage = 5000

// loadingLane is a lane that was taken, with the blocked keys that are loaded so far.
type loadingLane struct {
	assignment  dispatch.Assignment
	incarnation string // server incarnation in which they were loaded
	blocked     []dispatch.BlockedRow
}

// loadBlocked loads a page of the messages that block keys in newly taken lanes, and starts the lanes that are
// complete. The reading goroutine calls it, so its statement begins after the taking committed and ends before the
// first read. Lanes with few blocked keys go first, so that their messages are published while the others still load.
func (r *reader) loadBlocked(ctx context.Context, load []dispatch.Assignment) error {
	e, old := r.e, r.loading
	if len(load)+len(old) == 0 {
		return nil
	}
	r.loading = make(map[int16]*loadingLane, len(load))
	for _, t := range load {
		if r.loading[t.Lane] = old[t.Lane]; r.loading[t.Lane] == nil || r.loading[t.Lane].assignment != t {
			r.loading[t.Lane] = &loadingLane{assignment: t}
		}
	}
	if len(r.loading) == 0 {
		return nil
	}
	lanes, cursors := make([]int64, 0, len(r.loading)), make([]int64, 0, len(r.loading))
	for n, l := range r.loading {
		cursor := int64(0)
		if k := len(l.blocked); k > 0 {
			cursor = l.blocked[k-1].ID
		}
		lanes, cursors = append(lanes, int64(n)), append(cursors, cursor)
	}
	limit := max(1, blockedPerPage/len(lanes))
	pages, incarnation, err := e.blockedRows(ctx, r.q, lanes, cursors, limit)
	if err != nil {
		return err
	}
	for n, l := range r.loading {
		if l.incarnation = cmp.Or(l.incarnation, incarnation); l.incarnation != incarnation {
			r.loading = nil // rows loaded before a crash of the server may be lost: start again from the first page
			return errNewIncarnation
		}
		if l.blocked = append(l.blocked, pages[n]...); len(pages[n]) == limit {
			continue
		}
		delete(r.loading, n)
		lane := dispatch.NewTakenLane(time.Now(), l.assignment, l.blocked) // the others need not wait for this
		e.step(func(now time.Time, c *coordinator.Coordinator) { c.LaneLoaded(now, l.assignment, l.incarnation, lane) })
	}
	return nil
}

// blockedRows reads a page of the messages that block keys, above a cursor in each lane, and the incarnation of the
// server.
func (e *engine) blockedRows(
	ctx context.Context, q drive.Querier, lanes, cursors []int64, limit int,
) (pages map[int16][]dispatch.BlockedRow, incarnation string, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	pages = map[int16][]dispatch.BlockedRow{}
	err = drive.Collect(ctx, q, func(rows drive.Rows) error {
		var lane int16
		var b dispatch.BlockedRow
		var wait float64
		if err := rows.Scan(&lane, &b.ID, &b.Key, &b.Topic, &wait, &b.Dead); err != nil {
			return err
		}
		if lane < 0 {
			if incarnation = b.Topic; b.Dead {
				return errStandby
			}
			return nil
		}
		b.Wait = time.Duration(wait * float64(time.Second))
		pages[lane] = append(pages[lane], b)
		return nil
	}, e.sql.loadBlocked, lanes, cursors, int64(limit), topicsArg(e.cfg.Topics), e.cfg.BlockKeyOnDead)
	if err != nil {
		return nil, "", fmt.Errorf("load blocked keys: %w", err)
	}
	for _, page := range pages {
		slices.SortFunc(page, func(a, b dispatch.BlockedRow) int { return cmp.Compare(a.ID, b.ID) })
	}
	return pages, incarnation, nil
}

// checkWriters finds the long transactions that have not written to the outbox, so that their end does not make us read
// again everything written since they began.
func (r *reader) checkWriters(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.e.cfg.QueryTimeout)
	defer cancel()
	writers := map[uint32]bool{}
	err := drive.Collect(ctx, r.q, func(rows drive.Rows) error {
		var xid int64
		if err := rows.Scan(&xid); err != nil {
			return err
		}
		if xid < 0 {
			return errStandby
		}
		writers[uint32(xid)] = true
		return nil
	}, r.e.sql.writers)
	if err != nil {
		r.e.logger.Debug("could not check for long transactions: reading "+
			"continues", watermill.LogFields{"err": err.Error()})
		return
	}
	r.e.step(func(_ time.Time, c *coordinator.Coordinator) { c.WritersSeen(writers) })
}

// notified handles the notification of a commit.
func (e *engine) notified(n core.Notification) {
	if n.Outbox {
		e.wake()
	}
}

// listen is the goroutine that receives notifications of commits in other processes. Those that it misses while the
// connection is down are found by polling.
func (e *engine) listen(ctx context.Context) {
	// Cause: its connection broke, or the pool is full.
	// Cure: they are found by polling.
	report := trouble.RetryLog{Logger: e.logger, What: "listening for commits of other processes"}
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 100*time.Millisecond, 30*time.Second
	for {
		err := e.db.Listen(ctx, func(n core.Notification) {
			report.Report(nil)
			retry.Reset()
			e.notified(n)
		})
		if errors.Is(err, drive.ErrNoListen) {
			e.logger.Debug("no LISTEN here: polling for messages of other processes", watermill.LogFields{"err": err.Error()})
			return
		}
		if ctx.Err() != nil {
			return
		}
		report.Report(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry.NextBackOff()):
		}
	}
}
