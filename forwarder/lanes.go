package forwarder

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
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
	var lanes, epochs, again, againEpochs []int64
	e.mu.Lock()
	mine := 0
	for _, s := range states {
		have := e.board.lanes[s.number]
		if s.owner != e.owner {
			if have != nil {
				e.board.loseLane(have)
			}
			delete(e.loading, s.number)
			if !s.ownerAlive {
				lanes, epochs = append(lanes, int64(s.number)), append(epochs, s.epoch)
			}
			continue
		}
		if load := e.loading[s.number]; (have == nil || have.epoch != s.epoch) && (load == nil || load.epoch != s.epoch) {
			// The server began a new life, or the answer of the statement that took it was lost.
			again, againEpochs = append(again, int64(s.number)), append(againEpochs, s.epoch)
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
	e.recall()
	e.draining = false
	for _, l := range e.board.lanes {
		e.draining = e.draining || l.draining
	}
	e.mu.Unlock()

	if n := min(len(lanes), share-mine); n > 0 {
		taken, err := e.take(ctx, q, e.sql.take, lanes[:n], epochs[:n])
		if err != nil {
			return false, err
		}
		mine += taken
	}
	if len(again) > 0 {
		if _, err := e.take(ctx, q, e.sql.retake, again, againEpochs); err != nil {
			return false, err
		}
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

func (e *engine) take(ctx context.Context, q schema.Querier, query string, lanes, epochs []int64) (int, error) {
	taken := map[int16]int64{}
	err := schema.Collect(ctx, q, func(rows schema.Rows) error {
		var number int16
		var epoch int64
		if err := rows.Scan(&number, &epoch); err != nil {
			return err
		}
		taken[number] = epoch
		return nil
	}, query, e.cfg.Scope, e.owner, lanes, epochs)
	if err != nil {
		return 0, fmt.Errorf("take lanes: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for number, epoch := range taken {
		if l := e.board.lanes[number]; l != nil {
			e.board.loseLane(l)
		}
		e.loading[number] = &loading{epoch: epoch}
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

// headPage is how many held keys are loaded by one statement.
const headPage = 5000

// loading is a lane whose held keys are being loaded.
type loading struct {
	epoch  int64
	cursor int64 // the last id that was read
	heads  []head
}

// loadNewLanes loads a page of the messages that hold keys in the lanes that were taken, and starts those of which that
// was all: those with few come first. It is called by the reading goroutine, so its statements begin after the taking
// committed and end before the first read of the lane.
func (e *engine) loadNewLanes(ctx context.Context) error {
	e.mu.Lock()
	taken := maps.Clone(e.loading)
	e.mu.Unlock()
	if len(taken) == 0 {
		return nil
	}
	cursors := make(map[int16]int64, len(taken))
	for number, load := range taken {
		cursors[number] = load.cursor
	}
	heads, complete, err := e.loadHeads(ctx, cursors)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	for number, load := range taken {
		if e.loading[number] != load {
			continue // it is somebody else's, or was taken anew
		}
		load.heads = append(load.heads, heads[number]...)
		if complete[number] {
			delete(e.loading, number)
			e.board.addLane(number, load.epoch, load.heads, now)
			e.reader.more = true
		} else {
			load.cursor = heads[number][len(heads[number])-1].id
		}
	}
	return nil
}

// loadHeads reads a page of the messages that hold keys, past a cursor in each lane, and says which lanes have no more.
func (e *engine) loadHeads(ctx context.Context, cursors map[int16]int64) (heads map[int16][]head, complete map[int16]bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	var lanes, from []int64
	for number, cursor := range cursors {
		lanes, from = append(lanes, int64(number)), append(from, cursor)
	}
	most := max(headPage/len(lanes), 1)
	heads = map[int16][]head{}
	err = schema.Collect(ctx, e.db, func(rows schema.Rows) error {
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
	}, e.sql.loadHeads, lanes, from, int64(most), topicsArg(e.cfg.Topics), e.cfg.HoldDead)
	if err != nil {
		return nil, nil, fmt.Errorf("load held keys: %w", err)
	}
	complete = map[int16]bool{}
	for number := range cursors {
		list := heads[number]
		slices.SortFunc(list, func(a, b head) int { return cmp.Compare(a.id, b.id) })
		complete[number] = len(list) < most
	}
	return heads, complete, nil
}
