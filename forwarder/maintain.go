package forwarder

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/millrace-go/watermill-outbox/schema"
)

const (
	sweepBatch  = 1000    // ids per lane and statement
	sweepSpan   = 1 << 18 // how far a statement looks
	maxSuspects = 1000
)

// maintain is the goroutine for what is in no hurry: the sweep, a second look at held keys, writing down which topics are
// paused, and deleting what was published long ago.
func (e *engine) maintain(ctx context.Context) {
	sweep := errorLog{logger: e.logger, what: "Sweeping the outbox"}
	heads := errorLog{logger: e.logger, what: "Checking held keys"}
	clean := errorLog{logger: e.logger, what: "Deleting published messages"}
	inbox := errorLog{logger: e.logger, what: "Deleting old rows of the inbox"}
	forget := errorLog{logger: e.logger, what: "Forgetting forwarders that are gone"}
	told := errorLog{logger: e.logger, what: "Writing paused topics"}
	var published cleaner
	var paused pauses
	pauseTick := time.NewTicker(pauseInterval)
	defer pauseTick.Stop()
	tick := time.NewTicker(e.cfg.CleanInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pauseTick.C:
			told.report(paused.tell(ctx, e))
		case <-tick.C:
			heads.report(e.recheckHeads(ctx))
			sweep.report(e.sweepLanes(ctx))
			if !e.ownsLane(0) { // one forwarder is enough
				continue
			}
			if e.cfg.Retention > 0 {
				clean.report(published.clean(ctx, e))
			}
			if e.cfg.InboxRetention > 0 {
				inbox.report(e.cleanInbox(ctx))
			}
			forget.report(e.forgetForwarders(ctx))
		}
	}
}

func (e *engine) ownsLane(number int16) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.board.lanes[number] != nil
}

// sweepLanes looks once through all that is pending below the marks for rows that nobody here knows of, using
// at most a twentieth of the time. What it finds is read by id after the next ordinary read: a row of a
// transaction that has just committed is known by then, in its proper place.
func (e *engine) sweepLanes(ctx context.Context) error {
	e.mu.Lock()
	for _, l := range e.board.lanes {
		l.cursor = 0
	}
	e.mu.Unlock()
	for {
		begun := time.Now()
		more, err := e.sweepOnce(ctx)
		if err != nil || !more {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(20 * time.Since(begun)):
		}
	}
}

func (e *engine) sweepOnce(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	var lanes, cursors, upto []int64
	read := map[int16]*lane{}
	e.mu.Lock()
	for _, l := range e.board.sortedLanes() {
		if l.cursor < l.mark {
			lanes, cursors, upto = append(lanes, int64(l.number)), append(cursors, l.cursor), append(upto, min(l.mark, l.cursor+sweepSpan))
			read[l.number] = l
		}
	}
	e.mu.Unlock()
	if len(lanes) == 0 {
		return false, nil
	}
	found := map[int16][]int64{}
	err = schema.Collect(ctx, e.db, func(rows schema.Rows) error {
		var lane int16
		var id int64
		if err := rows.Scan(&lane, &id); err != nil {
			return err
		}
		found[lane] = append(found[lane], id)
		return nil
	}, e.sql.sweep, lanes, cursors, upto, int64(sweepBatch), topicsArg(e.cfg.Topics))
	if err != nil {
		return false, fmt.Errorf("sweep: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, number := range lanes {
		l := read[int16(number)]
		ids := found[l.number]
		if l.cursor = upto[i]; len(ids) == sweepBatch {
			l.cursor = ids[len(ids)-1]
		}
		more = more || l.cursor < l.mark
		if l.lost || len(ids) == 0 {
			continue
		}
		known := l.knownIDs()
		for _, id := range ids {
			if _, ok := known[id]; !ok && len(e.reader.suspects) < maxSuspects {
				e.reader.suspects = append(e.reader.suspects, wanted{id: id, why: forSweep, lane: l})
			}
		}
	}
	if len(e.reader.suspects) > 0 {
		signal(e.readNow)
	}
	return more, nil
}

// knownIDs returns the rows that are in memory or skipped.
func (l *lane) knownIDs() map[int64]struct{} {
	known := make(map[int64]struct{}, len(l.inflight))
	for id := range l.inflight {
		known[id] = struct{}{}
	}
	for _, k := range l.keys {
		for _, id := range k.skipped {
			known[id] = struct{}{}
		}
	}
	return known
}

// recheckHeads compares the keys that are held with the rows that hold them, which somebody else may have
// settled, requeued or deleted.
func (e *engine) recheckHeads(ctx context.Context) error {
	type look struct {
		key  *key
		id   int64
		head *heldBy
	}
	looks := map[int16][]look{}
	cursors := map[int16]int64{}
	e.mu.Lock()
	for _, l := range e.board.lanes {
		for _, k := range l.keys {
			for id, h := range k.heads {
				if !h.due.IsZero() {
					looks[l.number], cursors[l.number] = append(looks[l.number], look{k, id, h}), 0
				}
			}
		}
	}
	e.mu.Unlock()
	for len(cursors) > 0 {
		heads, complete, err := e.loadHeads(ctx, cursors)
		if err != nil {
			return err
		}
		e.mu.Lock()
		now := time.Now()
		for number, from := range cursors {
			to := int64(math.MaxInt64)
			if !complete[number] {
				to = heads[number][len(heads[number])-1].id
			}
			live := map[int64]head{}
			for _, h := range heads[number] {
				live[h.id] = h
			}
			for _, c := range looks[number] {
				if c.id <= from || c.id > to || c.key.lane.lost || c.key.heads[c.id] != c.head || c.head.due.IsZero() {
					continue // of another page, or it was tried meanwhile
				}
				if h, ok := live[c.id]; !ok {
					e.board.removeHead(c.key, c.id)
				} else if due := now.Add(h.wait); !h.dead && due.Add(time.Second).Before(c.head.due) {
					e.board.retryHead(c.key, c.id, c.head, due)
				}
			}
			if cursors[number] = to; complete[number] {
				delete(cursors, number)
			}
		}
		e.mu.Unlock()
		signal(e.readNow)
	}
	return nil
}
