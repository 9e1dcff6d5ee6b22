package forwarder

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/schema"
)

// laneState is a lane as the database has it.
type laneState struct {
	number     int16
	epoch      int64
	owner      string
	ownerAlive bool
}

func (e *engine) readLanes(ctx context.Context, q schema.Querier) ([]laneState, error) {
	var states []laneState
	err := schema.Collect(ctx, q, func(rows schema.Rows) error {
		var s laneState
		if err := rows.Scan(&s.number, &s.epoch, &s.owner, &s.ownerAlive); err != nil {
			return err
		}
		states = append(states, s)
		return nil
	}, e.sql.lanes, e.cfg.Scope)
	if err != nil {
		return nil, fmt.Errorf("read lanes: %w", err)
	}
	return states, nil
}

// takeLanes compares what we have with what the database says, takes free lanes or marks surplus ones to be
// given back, and says whether lanes are missing to our share.
func (e *engine) takeLanes(ctx context.Context, q schema.Querier, share int, states []laneState) (short bool, err error) {
	var lanes, epochs []int64
	e.mu.Lock()
	mine := 0
	for _, s := range states {
		have := e.board.lanes[s.number]
		if s.owner != e.owner {
			if have != nil {
				e.board.loseLane(have)
			}
			if !s.ownerAlive {
				lanes, epochs = append(lanes, int64(s.number)), append(epochs, s.epoch)
			}
			continue
		}
		if (have == nil || have.epoch != s.epoch) && e.loading[s.number] != s.epoch {
			e.newLanes[s.number] = s.epoch // taken by a statement whose answer was lost
		}
		if have == nil || !have.draining {
			mine++
		}
	}
	e.share = share
	for _, l := range e.board.sortedLanes() {
		if mine <= share {
			break
		}
		e.board.drainLane(l)
		mine--
	}
	e.draining = false
	for _, l := range e.board.lanes {
		e.draining = e.draining || l.draining
	}
	e.mu.Unlock()

	if n := min(len(lanes), share-mine); n > 0 {
		taken, err := e.take(ctx, q, lanes[:n], epochs[:n])
		if err != nil {
			return false, err
		}
		mine += taken
	}
	e.mu.Lock()
	changed := mine != e.owned
	e.owned = mine
	e.offerDrained()
	e.mu.Unlock()
	if changed {
		e.obs.lanes(mine)
	}
	signal(e.readNow)
	select {
	case <-e.running:
	default:
		close(e.running)
	}
	return mine < share, nil
}

func (e *engine) take(ctx context.Context, q schema.Querier, lanes, epochs []int64) (int, error) {
	taken := map[int16]int64{}
	err := schema.Collect(ctx, q, func(rows schema.Rows) error {
		var number int16
		var epoch int64
		if err := rows.Scan(&number, &epoch); err != nil {
			return err
		}
		taken[number] = epoch
		return nil
	}, e.sql.take, e.cfg.Scope, e.owner, lanes, epochs)
	if err != nil {
		return 0, fmt.Errorf("take lanes: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for number, epoch := range taken {
		e.newLanes[number] = epoch
	}
	return len(taken), nil
}

// giveBack releases the lanes that are to be given back and on which nothing is under way any more.
func (e *engine) giveBack(ctx context.Context, q schema.Querier) error {
	e.mu.Lock()
	drained := e.board.drained()
	e.mu.Unlock()
	return e.release(ctx, q, drained)
}

func (e *engine) release(ctx context.Context, q schema.Querier, list []*lane) error {
	if len(list) == 0 {
		return nil
	}
	lanes, epochs := make([]int64, len(list)), make([]int64, len(list))
	for i, l := range list {
		lanes[i], epochs[i] = int64(l.number), l.epoch
	}
	if _, err := q.Exec(ctx, e.sql.release, e.cfg.Scope, e.owner, lanes, epochs); err != nil {
		return fmt.Errorf("give lanes back: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range list {
		e.board.loseLane(l)
	}
	return nil
}

// loadNewLanes starts the lanes that were taken, with the messages that hold keys in them. It is called by
// the reading goroutine, so its statement begins after the taking committed and ends before the first read.
func (e *engine) loadNewLanes(ctx context.Context) error {
	e.mu.Lock()
	taken := e.newLanes
	e.newLanes, e.loading = map[int16]int64{}, taken
	e.mu.Unlock()
	if len(taken) == 0 {
		return nil
	}
	lanes := make([]int64, 0, len(taken))
	for number := range taken {
		lanes = append(lanes, int64(number))
	}
	heads, err := e.loadHeads(ctx, lanes)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.loading = nil
	if err != nil {
		for number, epoch := range taken {
			if _, newer := e.newLanes[number]; !newer {
				e.newLanes[number] = epoch
			}
		}
		return err
	}
	now := time.Now()
	for number, epoch := range taken {
		e.board.addLane(number, epoch, heads[number], now)
	}
	e.reader.more = true
	return nil
}

func (e *engine) loadHeads(ctx context.Context, lanes []int64) (map[int16][]head, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	heads := map[int16][]head{}
	err := schema.Collect(ctx, e.db, func(rows schema.Rows) error {
		var lane int16
		var h head
		var wait float64
		if err := rows.Scan(&lane, &h.id, &h.key, &h.topic, &h.attempts, &wait, &h.dead); err != nil {
			return err
		}
		if lane < 0 {
			if h.dead {
				return ErrStandby
			}
			return nil
		}
		h.wait = time.Duration(wait * float64(time.Second))
		heads[lane] = append(heads[lane], h)
		return nil
	}, e.sql.loadHeads, lanes, topicsArg(e.cfg.Topics), e.cfg.HoldDead)
	if err != nil {
		return nil, fmt.Errorf("load held keys: %w", err)
	}
	return heads, nil
}
