package forwarder

import (
	"slices"
	"time"
)

// board is everything that the forwarder knows about the messages in its lanes: what was read, what is
// being published, which keys are held and which topics paused. It does no I/O and starts nothing; the
// engine guards it with one mutex.
//
// All of it but the topics belongs to one epoch of one lane: taking a lane starts with nothing, and
// losing one forgets all.
type board struct {
	cfg       *Config
	lanes     map[int16]*lane
	topics    map[string]*topic // the paused ones
	runnable  queue             // rows that may be published now
	buffered  int               // rows in memory that are neither published nor given up
	busy      int               // rows that are being published
	unsettled int               // rows that were published and not settled yet
	retries   retryQueue        // rows that wait for another attempt
	releases  []*key            // keys whose skipped rows may be read again

	published []*row    // for the settler
	failed    []failure // for the settler
	settled   []*row    // settled, but not yet forgotten: see forget

	rejected map[string]time.Time // when a rejection of a topic was reported last

	observe              observers
	maxChain, maxSkipped int // the constants, but in tests
}

// row is a message that was read.
type row struct {
	id         int64
	lane       *lane
	key        *key // nil without an ordering key
	bucket     *key // of a trial without an ordering key: where it was skipped
	uuid       string
	topic      string
	payload    []byte
	metadata   []byte // JSON object
	enqueuedAt time.Time
	attempts   int  // failed ones so far
	held       bool // it waited for its key, its topic or its next attempt
	probe      bool // published although its key is held: a head's next attempt, or a topic's trial
	started    time.Time
}

func (r *row) keyName() string {
	if r.key == nil {
		return ""
	}
	return r.key.name
}

// lane is one of the 64 lanes, for as long as we own it under one epoch.
type lane struct {
	number    int16
	epoch     int64
	mark      int64 // all rows up to here were read, but for those that the tracker brings back
	keys      map[string]*key
	inflight  map[int64]struct{} // rows in memory, and those whose settling a read may not have seen yet
	top       int64              // the highest row that was read
	busy      int                // rows being published
	unsettled int                // results that were not settled yet
	full      bool               // the last read of it hit its limit
	manyDue   bool               // so did the last one of what fell due
	draining  bool               // to be given back once nothing is under way
	lost      bool               // somebody else's: results count only if they are successes
	cursor    int64              // where the sweep stands
}

func newBoard(cfg *Config) *board {
	return &board{cfg: cfg, lanes: map[int16]*lane{}, topics: map[string]*topic{}, rejected: map[string]time.Time{}, maxChain: maxChain, maxSkipped: maxSkipped}
}

// addLane starts a lane that was taken, with the rows that wait for another attempt in it.
func (b *board) addLane(number int16, epoch int64, heads []head, now time.Time) {
	if old := b.lanes[number]; old != nil {
		b.loseLane(old)
	}
	l := &lane{number: number, epoch: epoch, keys: map[string]*key{}, inflight: map[int64]struct{}{}, full: true}
	b.lanes[number] = l
	for _, h := range heads {
		b.addHead(b.keyOf(l, h.key), h, now)
	}
}

// loseLane forgets a lane. What is being published stays under way; its result counts if it is a success.
func (b *board) loseLane(l *lane) {
	if b.lanes[l.number] == l {
		delete(b.lanes, l.number)
	}
	l.lost = true
	for _, k := range l.keys {
		b.unblockTopic(k)
		b.buffered -= len(k.chain)
		if k.publishing {
			b.buffered++ // counted down by done
		}
		k.chain = nil
	}
	l.keys = map[string]*key{}
	for _, t := range b.topics {
		if t.trial != nil && t.trial.lane == l {
			t.trial = nil
		}
	}
	b.runnable.drop(func(r *row) bool {
		if r.lane != l {
			return false
		}
		if r.key == nil || r.probe {
			b.buffered--
		}
		return true
	})
}

// drainLane stops new work on a lane that is to be given back.
func (b *board) drainLane(l *lane) { l.draining = true }

// drained returns the lanes to give back on which nothing is under way any more.
func (b *board) drained() []*lane {
	var list []*lane
	for _, l := range b.lanes {
		if l.draining && l.busy == 0 && l.unsettled == 0 {
			list = append(list, l)
		}
	}
	return list
}

// accept puts a row that was read on the queue, behind those of its key, or notes it as skipped.
func (b *board) accept(r *row, key string, now time.Time) bool {
	l := r.lane
	if _, known := l.inflight[r.id]; known {
		return false
	}
	if key == "" {
		if t := b.topics[r.topic]; t != nil {
			k := b.keyOf(l, bucketOf(r.topic))
			b.blockTopic(k, t)
			b.skip(k, r.id)
			return false
		}
		b.enqueue(r)
		return true
	}
	k := b.keyOf(l, key)
	if h := k.heads[r.id]; h != nil {
		if h.due.After(now.Add(time.Second)) { // an operator asked for it sooner
			b.retryHead(k, r.id, h, now)
		}
		return false
	}
	if r.attempts > 0 {
		// It waits for another attempt and so holds its key, though nobody told us: an operator asked for it again.
		b.addHead(k, head{id: r.id, key: key, topic: r.topic, attempts: r.attempts}, now)
		return false
	}
	if k.blocked() || len(k.skipped) > 0 || k.overflow != 0 || len(k.chain) >= b.maxChain {
		b.skip(k, r.id)
		return false
	}
	r.key = k
	b.append(k, r)
	return true
}

// append puts a row at the end of its key's chain.
func (b *board) append(k *key, r *row) {
	r.lane.inflight[r.id] = struct{}{}
	b.buffered++
	k.chain = append(k.chain, r)
	b.queueFirst(k)
}

// enqueue puts a row on the queue that follows no other.
func (b *board) enqueue(r *row) {
	r.lane.inflight[r.id] = struct{}{}
	b.buffered++
	b.runnable.push(r)
}

// next takes the row to publish now, or returns nil if there is none.
func (b *board) next(now time.Time) *row {
	for {
		r := b.runnable.pop()
		if r == nil {
			return nil
		}
		if r.key != nil && !r.probe && (len(r.key.chain) == 0 || r.key.chain[0] != r) {
			continue // its key was held after it was queued
		}
		if r.key != nil && !r.probe {
			r.key.queued = false
		}
		switch t := b.topics[r.topic]; {
		case r.lane.lost || r.lane.draining:
			b.giveUp(r)
		case t != nil && t.trial != r:
			b.putBack(r, t)
		default:
			r.started = now
			r.lane.busy++
			b.busy++
			if r.key != nil && !r.probe {
				r.key.publishing = true
			}
			return r
		}
	}
}

// giveUp drops a row from memory; whoever owns the lane next reads it again.
func (b *board) giveUp(r *row) {
	if t := b.topics[r.topic]; t != nil && t.trial == r {
		t.trial = nil
	}
	if r.key != nil && !r.probe {
		b.buffered -= len(r.key.chain)
		r.key.chain = nil
		return
	}
	b.buffered--
}

// putBack takes a row out of memory whose topic was paused after it was read, and its key's with it.
func (b *board) putBack(r *row, t *topic) {
	switch {
	case r.probe:
		b.buffered--
		delete(r.lane.inflight, r.id)
		if h := r.key.heads[r.id]; h != nil {
			b.retryHead(r.key, r.id, h, t.until)
		}
	case r.key == nil:
		b.buffered--
		delete(r.lane.inflight, r.id)
		k := b.keyOf(r.lane, bucketOf(r.topic))
		b.blockTopic(k, t)
		b.skip(k, r.id)
	default:
		b.blockTopic(r.key, t)
		b.hold(r.key)
	}
}

// sortedLanes returns the lanes that are to be read, in the order of their numbers.
func (b *board) sortedLanes() []*lane {
	list := make([]*lane, 0, len(b.lanes))
	for _, l := range b.lanes {
		if !l.draining {
			list = append(list, l)
		}
	}
	slices.SortFunc(list, func(x, y *lane) int { return int(x.number) - int(y.number) })
	return list
}
