package forwarder

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// The model runs the board and the tracker against a simulated database in a random interleaving of single
// steps: transactions that begin, take ids, insert, commit and abort; reads that take time and sometimes fail;
// publishes that succeed, fail in every way or are still under way when their lane is lost; results that are
// settled late; lanes that change hands. After every publish it checks the promise on order, and at the end
// that nothing was lost and nothing invented.

type modelRow struct {
	id        int64
	tx        *modelTx
	key       string
	lane      int16
	topic     string
	inserted  int // step
	attempts  int
	due       time.Time
	delayed   bool
	published bool // settled so
	dead      bool
	sent      bool
}

type modelTx struct {
	xid       int64 // 0 = none yet
	rows      []*modelRow
	committed int // step; 0 = not (yet)
	done      bool
}

type model struct {
	t      *testing.T
	rng    *rand.Rand
	step   int
	now    time.Time
	naive  bool // negative control: a plain id > low fetch
	lanes  int
	topics []string

	nextXid, latest, seq int64
	open                 []*modelTx
	rows                 []*modelRow
	keys                 int

	board     *board
	tracker   tracker
	epochs    map[int16]int64 // of the database
	reading   func()          // finishes the read that is under way
	sending   []*row
	stuck     []*row
	settling  []func()
	violated  string
	finishing bool
}

func newModel(t *testing.T, seed uint64) *model {
	cfg := &Config{Concurrency: 4, MaxAttempts: 3, MinDeadAge: -1,
		Backoff: Backoff{time.Millisecond, 5 * time.Millisecond}, PauseBackoff: Backoff{time.Millisecond, 5 * time.Millisecond}}
	m := &model{t: t, rng: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1e9, 0), nextXid: 100, latest: 99,
		lanes: 3, keys: 5, topics: []string{"a", "b"}, epochs: map[int16]int64{}}
	m.board = newBoard(cfg)
	m.board.observe = observers{logger: watermill.NopLogger{}, reports: newReporter(watermill.NopLogger{})}
	if m.chance(50) {
		m.board.maxChain, m.board.maxSkipped = 1+m.rng.IntN(4), 1+m.rng.IntN(5)
	}
	for n := range int16(m.lanes) {
		m.takeLane(n)
	}
	return m
}

func (m *model) chance(percent int) bool { return m.rng.IntN(100) < percent }

// takeLane happens in the goroutine that reads, so between reads.
func (m *model) takeLane(n int16) {
	if m.reading != nil {
		m.reading()
		m.reading = nil
	}
	m.epochs[n]++
	var heads []head
	for _, r := range m.rows {
		if r.lane == n && r.tx.committed > 0 && r.pending() && r.attempts > 0 && r.key != "" {
			heads = append(heads, head{id: r.id, key: r.key, topic: r.topic, attempts: r.attempts, wait: max(0, r.due.Sub(m.now))})
		}
	}
	m.board.addLane(n, m.epochs[n], heads, m.now)
}

func (r *modelRow) pending() bool { return !r.published && !r.dead }

// write makes one step of some transaction.
func (m *model) write() {
	if m.finishing {
		return
	}
	if len(m.open) < 6 && (len(m.open) == 0 || m.chance(30)) {
		m.open = append(m.open, &modelTx{})
		return
	}
	i := m.rng.IntN(len(m.open))
	tx := m.open[i]
	switch {
	case tx.xid == 0:
		tx.xid = m.nextXid
		m.nextXid++
	case m.chance(60) && len(tx.rows) < 5:
		m.seq++
		r := &modelRow{id: m.seq, tx: tx, inserted: m.step, topic: m.topics[m.rng.IntN(len(m.topics))]}
		if k := m.rng.IntN(m.keys + 1); k > 0 {
			r.key = fmt.Sprint("k", k)
			r.lane = int16(k % m.lanes)
		} else {
			r.lane = int16(m.rng.IntN(m.lanes))
		}
		if m.chance(5) {
			r.due, r.delayed = m.now.Add(time.Duration(m.rng.IntN(5))*time.Millisecond), true
		}
		tx.rows = append(tx.rows, r)
		m.rows = append(m.rows, r)
	case m.chance(50):
		tx.done = true
		if !m.chance(15) {
			tx.committed = m.step
		}
		m.latest = max(m.latest, tx.xid)
		m.open = slices.Delete(m.open, i, i+1)
	}
}

// read begins a read, or finishes the one under way.
func (m *model) read() {
	if m.reading != nil {
		m.reading()
		m.reading = nil
		return
	}
	if m.chance(30) {
		writers := map[uint32]bool{}
		for _, tx := range m.open {
			if len(tx.rows) > 0 {
				writers[uint32(tx.xid)] = true
			}
		}
		m.tracker.raise(writers)
		for m.chance(30) {
			m.step++
			m.write()
		}
	}
	width := m.lanes
	if m.chance(20) {
		width = 1
	}
	req := m.board.prepare(m.now, 1+m.rng.IntN(20), width, m.rng.IntN(m.lanes), m.chance(30), nil)
	req.span = 1000
	if m.chance(50) {
		req.span = 1 + m.rng.Int64N(10)
	}
	marks := map[int16]int64{}
	for _, l := range req.lanes {
		marks[l.number] = l.mark
	}
	maybeWrite := func() {
		if m.chance(30) {
			m.step++
			m.write()
		}
	}
	// The statement's order of evaluation: sequence, snapshot, next transaction id.
	seq := m.seq
	maybeWrite()
	snap := snapshot{seq: seq, xmax: m.latest + 1}
	visible := map[*modelRow]bool{}
	for _, r := range m.rows {
		if r.tx.committed > 0 && r.pending() {
			visible[r] = true
		}
	}
	for _, tx := range m.open {
		if tx.xid != 0 && tx.xid < snap.xmax {
			snap.inProgress = append(snap.inProgress, tx.xid)
		}
	}
	state := map[*modelRow]modelRow{}
	for r := range visible {
		state[r] = *r
	}
	maybeWrite()
	snap.nextXid = m.nextXid
	res := m.answer(req, snap, marks, visible, state)
	fails := m.chance(10)
	m.reading = func() {
		if fails {
			m.board.abandon(req, m.now)
			return
		}
		m.board.integrate(req, res, m.now)
		m.tracker.observe(snap)
	}
}

// answer is what schema.Fetch returns.
func (m *model) answer(req request, snap snapshot, marks map[int16]int64, visible map[*modelRow]bool, state map[*modelRow]modelRow) response {
	res := response{snapshot: snap, rewind: -1, owned: map[int16]bool{}, byID: map[int64]fetched{}}
	if !m.naive {
		xids, bounds, los, segmentBounds := m.tracker.args()
		for i, xid := range xids {
			if xid < snap.xmax && !slices.Contains(snap.inProgress, xid) && (res.rewind < 0 || bounds[i] < res.rewind) {
				res.rewind = bounds[i]
			}
		}
		for i, lo := range los {
			if lo < snap.xmax && (res.rewind < 0 || segmentBounds[i] < res.rewind) {
				res.rewind = segmentBounds[i]
			}
		}
	}
	of := func(r *modelRow) fetched {
		return fetched{laneNumber: r.lane, keyText: r.key, row: row{id: r.id, topic: r.topic, attempts: state[r].attempts}}
	}
	for i, l := range req.lanes {
		if m.epochs[l.number] != l.epoch {
			continue
		}
		res.owned[l.number] = true
		start := marks[l.number]
		if res.rewind >= 0 {
			start = min(start, res.rewind)
		}
		n := int64(0)
		for _, r := range m.rows {
			if visible[r] && r.lane == l.number && state[r].due.IsZero() && r.id > start && r.id-start <= req.span && n < req.limits[i].of(start, marks[l.number]) {
				res.ready = append(res.ready, of(r))
				n++
			}
		}
		if req.due != nil {
			dues := int64(0)
			for _, r := range m.rows {
				if visible[r] && r.lane == l.number && !state[r].due.IsZero() && !state[r].due.After(m.now) && dues < req.due[i] {
					dues++
					res.due = append(res.due, of(r))
				}
			}
		}
	}
	for _, w := range req.wanted {
		i := slices.IndexFunc(m.rows, func(r *modelRow) bool { return r.id == w.id })
		if r := m.rows[i]; visible[r] && res.owned[r.lane] {
			res.byID[w.id] = of(r)
		}
	}
	sortFetched(res.ready)
	slices.SortFunc(res.due, func(a, b fetched) int { return cmp.Compare(a.id, b.id) })
	return res
}

func (m *model) find(id int64) *modelRow {
	return m.rows[slices.IndexFunc(m.rows, func(r *modelRow) bool { return r.id == id })]
}

// send begins or ends a publish.
func (m *model) send() {
	if len(m.sending) < 4 && m.chance(60) {
		if r := m.board.next(m.now); r != nil {
			m.sending = append(m.sending, r)
		}
		return
	}
	if len(m.stuck) > 0 && m.chance(20) {
		r := m.stuck[0]
		m.stuck = m.stuck[1:]
		res := result{late: true}
		if m.chance(50) {
			res.err = errors.New("rejected")
		} else {
			m.find(r.id).sent = true // a repetition, or a first occurrence that nobody waited for
		}
		m.board.done(r, res, m.now)
		return
	}
	if len(m.sending) == 0 {
		return
	}
	i := m.rng.IntN(len(m.sending))
	r := m.sending[i]
	m.sending = slices.Delete(m.sending, i, i+1)
	res := result{}
	switch p := m.rng.IntN(100); {
	case p < 10:
		res = result{err: errors.New("rejected"), verdict: Rejected}
	case p < 15:
		res = result{err: errors.New("unavailable"), verdict: Unavailable}
	case p < 17:
		res = result{err: errors.New("permanent"), verdict: Permanent}
	case p < 22: // times out; the publisher returns later
		res = result{err: ErrPublishTimeout, verdict: Rejected}
		m.stuck = append(m.stuck, r)
	default:
		m.sent(m.find(r.id))
	}
	m.board.done(r, res, m.now)
}

// sent checks the promise on order at the first occurrence of a message.
func (m *model) sent(r *modelRow) {
	if r.tx.committed == 0 {
		m.violated = fmt.Sprintf("row %d was published but never committed", r.id)
	}
	if r.sent || r.key == "" || r.delayed {
		r.sent = true
		return
	}
	r.sent = true
	for _, earlier := range m.rows {
		if earlier.key == r.key && !earlier.sent && !earlier.dead && !earlier.delayed && earlier.tx.committed > 0 &&
			earlier.tx.committed < r.inserted {
			m.violated = fmt.Sprintf("key %s: row %d was published before row %d, whose transaction had committed before it was inserted", r.key, r.id, earlier.id)
		}
	}
}

// settle begins or ends a settling. The database changes at once, the board learns of it later.
func (m *model) settle() {
	if len(m.settling) > 0 && m.chance(60) {
		m.settling[0]()
		m.settling = m.settling[1:]
		return
	}
	published, failed := m.board.takeResults(10)
	if len(published)+len(failed) == 0 {
		return
	}
	for _, r := range published {
		row := m.find(r.id)
		row.published, row.dead = true, false
	}
	outcomes := map[int64]outcome{}
	for _, f := range failed {
		r := m.find(f.row.id)
		switch {
		case m.epochs[r.lane] != f.row.lane.epoch:
			outcomes[r.id] = outcomeFenced
		case !r.pending():
			outcomes[r.id] = outcomeGone
		default:
			r.attempts, r.due = f.attempts, m.now.Add(f.delay)
			outcomes[r.id] = outcomeWaiting
			if f.permanent || f.attempts >= m.board.cfg.MaxAttempts {
				r.dead = true
				outcomes[r.id] = outcomeDead
			}
		}
	}
	m.settling = append(m.settling, func() {
		m.board.settledPublished(published)
		for _, f := range failed {
			m.board.settledFailed(f, outcomes[f.row.id], m.now)
		}
	})
}

func (m *model) run(steps int) string {
	for range steps {
		m.step++
		m.now = m.now.Add(time.Duration(m.rng.IntN(300)) * time.Microsecond)
		switch p := m.rng.IntN(100); {
		case p < 35:
			m.write()
		case p < 55:
			m.read()
		case p < 85:
			m.send()
		case p < 97:
			m.settle()
		case m.chance(20):
			// Somebody takes the lane and we take it back, without having noticed.
			m.takeLane(int16(m.rng.IntN(m.lanes)))
		case m.chance(20):
			if l := m.board.lanes[int16(m.rng.IntN(m.lanes))]; l != nil {
				m.board.drainLane(l)
			}
		case m.chance(20):
			m.epochs[int16(m.rng.IntN(m.lanes))]++ // stolen; the next read finds out
		}
		m.regainLostLanes()
		if m.violated != "" {
			return m.violated
		}
	}
	return m.finish()
}

func (m *model) regainLostLanes() {
	for _, l := range m.board.drained() {
		m.board.loseLane(l)
	}
	for n := range int16(m.lanes) {
		if m.board.lanes[n] == nil && m.chance(20) {
			m.takeLane(n)
		}
	}
}

// finish ends all transactions and lets everything through.
func (m *model) finish() string {
	m.finishing = true
	for _, tx := range m.open {
		tx.committed = m.step
		m.latest = max(m.latest, tx.xid)
	}
	m.open = nil
	for range 20000 {
		m.step++
		m.now = m.now.Add(time.Millisecond)
		m.read()
		m.send()
		m.settle()
		m.regainLostLanes()
		if m.violated != "" {
			return m.violated
		}
		if !slices.ContainsFunc(m.rows, func(r *modelRow) bool { return r.tx.committed > 0 && r.pending() }) {
			if n := m.board.busy - len(m.sending); n != 0 {
				return fmt.Sprintf("board counts %d publishes that are not under way", n)
			}
			return ""
		}
	}
	left := ""
	for _, r := range m.rows {
		if r.tx.committed > 0 && r.pending() {
			_, inflight := m.board.lanes[r.lane].inflight[r.id]
			left += fmt.Sprintf(" %d(lane %d key %q topic %s attempts %d inflight %v)", r.id, r.lane, r.key, r.topic, r.attempts, inflight)
		}
	}
	return fmt.Sprintf("never settled:%s; buffered %d, busy %d, runnable %d, topics %d, releases %d",
		left, m.board.buffered, m.board.busy, m.board.runnable.len(), len(m.board.topics), len(m.board.releases))
}

func TestModelKeepsOrderAndLosesNothing(t *testing.T) {
	seeds := uint64(100)
	if os.Getenv("OUTBOX_LONG") != "" {
		seeds = 5000
	}
	for seed := range seeds {
		m := newModel(t, seed)
		if problem := m.run(1500); problem != "" {
			t.Fatalf("seed %d, step %d: %s", seed, m.step, problem)
		}
	}
}

// The model can fail: reading plainly past the mark breaks what it checks.
func TestModelFindsThePlainFetchOut(t *testing.T) {
	for seed := range uint64(50) {
		m := newModel(t, seed)
		m.naive = true
		if m.run(1500) != "" {
			return
		}
	}
	t.Fatal("a plain fetch passed")
}
