package forwarder

import (
	"time"
)

// reportEvery is how often rejections of a topic, or its pause, are reported.
const reportEvery = time.Minute

// result is what became of a publish.
type result struct {
	err     error
	verdict Verdict
	aborted bool // not sent, or nobody waited for the answer: nothing is known and nothing is charged
	late    bool // a timeout was charged already
}

// done takes the result of a publish.
func (b *board) done(r *row, res result, now time.Time) {
	if !res.late {
		r.lane.busy--
		b.busy--
		b.buffered--
	}
	k := r.key
	if k != nil && !r.probe && !res.late {
		k.publishing = false
		if len(k.chain) > 0 && k.chain[0] == r {
			k.chain[0] = nil // the array outlives the row
			k.chain = k.chain[1:]
		}
	}
	if r.bucket != nil && !(res.err != nil && res.verdict == Unavailable) {
		r.bucket.unskip(r.id)
		b.advance(r.bucket)
	}
	if res.err == nil && !res.aborted {
		r.payload, r.metadata = nil, nil // settling needs neither
		b.published = append(b.published, r)
		b.unsettled++
		r.lane.unsettled++
		if t := b.topics[r.topic]; t != nil && t.trial == r {
			b.reopen(t)
		}
		if k != nil && !r.lane.lost {
			delete(k.heads, r.id)
			k.unskip(r.id)
			b.advance(k)
		}
		return
	}
	if res.late || r.lane.lost {
		return // charged already, or somebody else's to judge
	}
	if k != nil && r.probe && !k.waitsFor(r.id) {
		// An earlier attempt that had timed out succeeded after all, and the key has moved on.
		delete(r.lane.inflight, r.id)
		if t := b.topics[r.topic]; t != nil && t.trial == r {
			t.trial = nil
		}
		return
	}
	if res.aborted {
		b.returnUnsent(r, now)
		return
	}
	if res.verdict == Unavailable {
		t := b.pause(r, res.err, now)
		delete(r.lane.inflight, r.id)
		switch {
		case k == nil:
			k = b.keyOf(r.lane, bucketOf(r.topic))
			b.blockTopic(k, t)
			b.skip(k, r.id)
		case k.heads[r.id] != nil:
			b.retryHead(k, r.id, k.heads[r.id], t.until)
		default:
			b.skip(k, r.id)
			b.blockTopic(k, t)
			b.hold(k)
		}
		return
	}
	if t := b.topics[r.topic]; t != nil && t.trial == r {
		b.reopen(t) // the broker answered
	}
	f := failure{row: r, err: res.err, attempts: r.attempts + 1, permanent: res.verdict == Permanent}
	f.delay = b.cfg.Backoff.Delay(f.attempts)
	b.failed = append(b.failed, f)
	r.lane.unsettled++
	if !f.permanent { // that is reported as dead
		first := now.Sub(b.rejected[r.topic]) >= reportEvery
		if first {
			b.rejected[r.topic] = now
		}
		b.observe.rejected(f, first)
	}
	if k != nil {
		k.unskip(r.id)
		k.setHead(r.id, r.topic)
		b.hold(k)
	}
}

// returnUnsent makes a row readable again whose publish was cut off by shutdown.
func (b *board) returnUnsent(r *row, now time.Time) {
	delete(r.lane.inflight, r.id)
	if r.key != nil {
		b.skip(r.key, r.id)
		b.hold(r.key)
		return
	}
	b.retries.add(retry{at: now, lane: r.lane, id: r.id})
}

// failure is a failed attempt on its way into the database.
type failure struct {
	row       *row
	err       error
	attempts  int
	delay     time.Duration
	permanent bool
}

// outcome is what the database made of a failure.
type outcome string

const (
	outcomeWaiting outcome = "waiting" // recorded; another attempt is due after the delay
	outcomeDead    outcome = "dead"    // recorded; there will be no other attempt
	outcomeGone    outcome = "gone"    // somebody else settled the message
	outcomeFenced  outcome = "fenced"  // the lane is somebody else's
	outcomeLocked  outcome = "locked"  // not recorded: somebody else's transaction has locked the message
)

// takeResults hands the settler everything that is to be settled.
func (b *board) takeResults(most int) (published []*row, failed []failure) {
	n := min(most, len(b.published))
	published = b.published[:n:n]
	if b.published = b.published[n:]; len(b.published) == 0 {
		b.published = nil
	}
	failed, b.failed = b.failed, nil
	return
}

// settledPublished notes that publishes were settled.
func (b *board) settledPublished(rows []*row) {
	for _, r := range rows {
		r.lane.unsettled--
	}
	b.unsettled -= len(rows)
	b.settled = append(b.settled, rows...)
}

// settledFailed notes what the database made of a failure.
func (b *board) settledFailed(f failure, o outcome, now time.Time) {
	r := f.row
	r.lane.unsettled--
	if r.lane.lost {
		return
	}
	if o == outcomeFenced {
		b.loseLane(r.lane)
		return
	}
	b.settled = append(b.settled, r)
	switch {
	case r.key == nil:
		if o == outcomeWaiting {
			b.retries.add(retry{at: now.Add(f.delay), lane: r.lane, id: r.id})
		}
	case r.key.heads[r.id] == nil:
	case o == outcomeWaiting:
		b.retryHead(r.key, r.id, r.key.heads[r.id], now.Add(f.delay))
	case o == outcomeDead && b.cfg.HoldDead:
		b.retryHead(r.key, r.id, r.key.heads[r.id], now.Add(headRecheck))
	default:
		b.removeHead(r.key, r.id)
	}
}

// forget drops settled rows from memory. It must run before a read starts, never during one: a read whose
// snapshot is older than the settling still returns the row, and would take it for a new one.
func (b *board) forget() {
	for _, r := range b.settled {
		delete(r.lane.inflight, r.id)
	}
	clear(b.settled)
	b.settled = b.settled[:0]
}
