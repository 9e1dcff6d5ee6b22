package board_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
)

// model is one schedule: some forwarders over one database, and a random interleaving of single steps. After each
// step it checks what the design promises, and at the end that nothing was lost.
//
// Each step has random numbers of its own, so a failing schedule can be made shorter by leaving steps out.
type model struct {
	pcg  *rand.PCG
	rng  *rand.Rand
	seed uint64
	cfg  board.Config

	db           *database
	lanes        []int16 // that messages are in
	topics       []string
	keys         int
	messages     map[string]*record // by uuid
	forwarders   []*forwarder
	forwarderIDs int
	thief        *forwarder // it is about to take a lane
	lookedAt     int        // clock
	stealAfter   time.Time  // what was stolen last is to be of use
	afterFailure bool       // it waits for the settling of a failure

	// What happens in this schedule.
	calm        bool // nothing that excuses a duplicate
	tight       bool // reads and publishes start only when the board asks for it
	small       bool // stretches are short
	crashes     bool
	operators   bool
	kills       bool // forwarders die, or stand still
	maintains   bool
	ignoreLease bool
	deadTopic   string // cannot be reached until all else is done; "" = none
	hungTopic   string // its publishes do not return until then
	revived     bool
	patience    time.Duration // a factor
	keeps       int           // percent, as below: how often the keeper gets a turn
	rejects     int
	unavailable int
	slow        int
	readFails   int
	settleFails int
	unknown     int

	landsEarly  bool // a message may reach the broker although its publish fails
	leavesOut   bool // reads leave out what fell due of topics that are closed
	shadowWords int

	variant variant

	finishing bool
	violated  string
	logging   bool
	events    []string
	at        int // step
}

func newModel(seed uint64, v variant, logging bool) *model {
	m := &model{variant: v, logging: logging, pcg: rand.NewPCG(seed, 0), seed: seed, messages: map[string]*record{}, topics: []string{"a", "b", "c"}}
	m.rng = rand.New(m.pcg)
	m.db = newDatabase(m.rng)
	m.lanes = []int16{int16(m.rng.IntN(22)), int16(22 + m.rng.IntN(21)), int16(43 + m.rng.IntN(21))}
	m.keys = 1 + m.rng.IntN(6)
	m.calm, m.tight, m.small = m.chance(25), m.chance(50), m.chance(50)
	if !m.calm {
		m.crashes, m.operators, m.kills, m.ignoreLease = m.chance(30), m.chance(40), m.chance(50), m.chance(30)
	}
	v.among(m)
	m.maintains = m.operators || m.chance(30)
	m.rejects, m.unavailable, m.slow, m.keeps = m.rng.IntN(40), m.rng.IntN(12), m.rng.IntN(90), 10+m.rng.IntN(91)
	m.readFails, m.settleFails, m.unknown = m.rng.IntN(12), m.rng.IntN(12), m.rng.IntN(12)
	if m.patience = 1; m.chance(25) {
		m.settleFails = 70
	}
	if m.chance(60) {
		m.patience = 10
	}
	m.leavesOut, m.landsEarly = m.chance(50), !m.calm && m.chance(40)
	m.db.faults, m.db.maxAttempts = v.database, 2+m.rng.IntN(9)
	if m.kills && m.chance(50) {
		m.rejects += 30
	}
	if m.kills && m.chance(30) {
		m.keeps = 2
	}
	m.db.deletes, m.db.holdDead = m.chance(30), m.chance(20)
	m.db.leases = 6 * time.Millisecond
	if m.calm || m.chance(30) {
		m.db.leases = time.Hour
	}
	m.cfg = board.Config{
		Concurrency: 1 + m.rng.IntN(5), Rows: 1 + m.rng.IntN(20), Bytes: 1 << 30,
		Parked: 2 + m.rng.IntN(19), KeyParked: 1 + m.rng.IntN(5), Chain: 1 + m.rng.IntN(4),
		SlowAfter: 2 * time.Millisecond, HoldDead: m.db.holdDead,
		Backoff:      func(int) time.Duration { return m.backoff() },
		PauseBackoff: func(int) time.Duration { return m.delay() },
	}
	if m.chance(50) {
		m.cfg.Bytes = int64(100 + m.rng.IntN(1000))
	}
	if !m.calm && m.chance(60) {
		m.cfg.PublishTimeout = 4 * time.Millisecond
	}
	if m.chance(20) && m.deadTopic == "" {
		m.deadTopic = m.topics[0]
	}
	if m.cfg.PublishTimeout > 0 && m.chance(25) {
		m.hungTopic = m.topics[1]
		m.cfg.Rows, m.cfg.Bytes = max(m.cfg.Rows, 8), max(m.cfg.Bytes, 800) // an eighth is a row: what it may take
	}
	if m.shadowWords = 64; m.deadTopic == "" && m.chance(10) {
		m.shadowWords = 1 // most keys seem to be in it that are not
	}
	for range 1 + m.rng.IntN(3) {
		m.start()
		for range 3 { // it takes its lanes
			m.forwarders[0].keeper()
		}
	}
	return m
}

// String says what happens in this schedule.
func (m *model) String() string {
	return fmt.Sprintf("calm %v, tight %v, small %v, crashes %v, operators %v, kills %v, maintains %v, deletes %v, hold dead %v, dead topic %q, hung topic %q, %+v",
		m.calm, m.tight, m.small, m.crashes, m.operators, m.kills, m.maintains, m.db.deletes, m.db.holdDead, m.deadTopic, m.hungTopic,
		[]any{m.cfg.Concurrency, m.cfg.Rows, m.cfg.Bytes, m.cfg.Parked, m.cfg.KeyParked, m.cfg.Chain, m.cfg.PublishTimeout})
}

func (m *model) chance(percent int) bool { return m.rng.IntN(100) < percent }

// delay is what a backoff comes to.
func (m *model) delay() time.Duration {
	return m.patience * time.Duration(1000+m.rng.IntN(4000)) * time.Microsecond
}

// backoff is delay, or so long that only an operator ends it.
func (m *model) backoff() time.Duration {
	if m.operators && m.chance(30) {
		return farOff
	}
	return m.delay()
}

func (m *model) stretch() int64 {
	if m.small && !m.finishing {
		return 1 + m.rng.Int64N(10)
	}
	return 1000
}

// part is how many of a list of results one settling takes.
func (m *model) part(n int) int {
	if n == 0 || m.chance(50) {
		return n
	}
	return m.rng.IntN(n + 1)
}

func (m *model) logf(format string, args ...any) {
	if m.logging {
		m.events = append(m.events, fmt.Sprintf("%d %s: ", m.at, m.db.now.Sub(time.Unix(1e9, 0)))+fmt.Sprintf(format, args...))
	}
}

func (m *model) failf(format string, args ...any) {
	if m.violated == "" {
		m.violated = fmt.Sprintf(format, args...)
		m.logf("VIOLATION: %s", m.violated)
	}
}

func (m *model) head(v version) board.Head {
	h := board.Head{ID: v.id, Key: v.key, Topic: v.topic, Attempts: v.seen.attempts, Dead: v.seen.dead}
	if !h.Dead {
		h.Wait = max(0, v.seen.due.Sub(m.db.now))
	}
	return h
}

// allHeads lists the heads of all lanes.
func (m *model) allHeads() map[int16][]board.Head {
	heads := map[int16][]board.Head{}
	for _, n := range m.lanes {
		for _, v := range m.db.heads(n, 0, 1<<30) {
			heads[n] = append(heads[n], m.head(v))
		}
	}
	return heads
}

// do makes one step of the schedule.
func (m *model) do(step int) {
	m.at = step
	m.pcg.Seed(m.seed, uint64(step)+1)
	m.db.now = m.db.now.Add(time.Duration(m.rng.IntN(300)) * time.Microsecond)
	p := m.rng.IntN(1000)
	of := func(part int) bool { // that many of a thousand steps
		p -= part
		return p < 0 && p >= -part
	}
	switch {
	case of(120):
		m.write()
	case of(20):
		if m.operators {
			m.operate()
		}
	case of(5):
		if m.crashes {
			m.crash()
		}
	case of(5):
		m.lock()
	case of(6):
		m.members()
	case of(30):
		if m.kills {
			m.steal()
		}
	default:
		f := m.forwarders[m.rng.IntN(len(m.forwarders))]
		for range 1 + m.rng.IntN(5) {
			if !f.standsStill() {
				f.step()
			}
		}
	}
	m.check(step%4 == 0)
}

// write makes one step of some transaction.
func (m *model) write() {
	d := m.db
	if len(d.open) < 6 && (len(d.open) == 0 || m.chance(25)) {
		d.begin()
		return
	}
	tx := d.open[m.rng.IntN(len(d.open))]
	switch p := m.rng.IntN(100); {
	case p < 10 && tx.xid == 0:
		tx.xid = d.newXid() // it writes elsewhere
		m.logf("transaction %d begins", tx.xid)
	case p < 55:
		if len(tx.rows) < 6 {
			m.insert(tx)
		}
	case p < 60:
		if len(tx.points) < 3 {
			d.savepoint(tx)
		}
	case p < 63 && len(tx.points) > 0:
		m.logf("transaction %d releases a savepoint", tx.xid)
		d.release(tx)
	case p < 67 && len(tx.points) > 0:
		m.logf("transaction %d rolls back to a savepoint", tx.xid)
		d.rollbackTo(tx)
	case p < 90:
		commit := m.chance(85)
		m.logf("transaction %d ends with %v, commit %v", tx.xid, tx.rows, commit)
		d.end(tx, commit)
		for _, f := range m.forwarders {
			f.dirty = f.dirty || commit && len(tx.rows) > 0
		}
	}
}

func (m *model) insert(tx *transaction) {
	key, lane := "", m.lanes[m.rng.IntN(len(m.lanes))]
	if k := m.rng.IntN(m.keys + 1); k > 0 {
		key, lane = fmt.Sprint("k", k), m.lanes[k%len(m.lanes)]
	}
	var due time.Time
	if m.chance(5) {
		due = m.db.now.Add(time.Duration(m.rng.IntN(5)) * time.Millisecond)
	}
	msg := m.db.insert(tx, key, m.topics[m.rng.IntN(len(m.topics))], lane, due)
	m.messages[msg.uuid] = msg
	m.logf("transaction %d inserts %v", tx.xid, msg)
}

// others has writers make a step in the middle of something else.
func (m *model) others(percent int) {
	for m.chance(percent) && !m.finishing {
		m.write()
		percent = 30
	}
}

func (m *model) operate() {
	d := m.db
	if m.chance(3) {
		if d.truncate() {
			m.logf("an operator truncates the table and restarts the sequence")
		}
		return
	}
	if m.chance(5) {
		d.paused = m.topics[:m.rng.IntN(len(m.topics)+1)]
		m.logf("an operator pauses %v", d.paused)
		return
	}
	if len(d.table) == 0 {
		return
	}
	msg := d.table[m.rng.IntN(len(d.table))]
	if i := slices.IndexFunc(d.table, func(msg *record) bool { return msg.attempts > 0 && !msg.published }); i >= 0 && m.chance(50) {
		msg = d.table[i]
	}
	if i := slices.IndexFunc(d.table, m.blocks); i >= 0 && m.chance(50) {
		msg = d.table[i]
	}
	if msg.visible() && !d.locked[msg] {
		m.logf("an operator %s", d.operate(msg))
	}
}

// blocks says whether a message is the first of its key and its topic is dead, so that all of the key waits for that.
func (m *model) blocks(msg *record) bool {
	return msg.topic == m.deadTopic && msg.key != "" && msg.pending() &&
		slices.IndexFunc(m.db.byKey[msg.key], func(o *record) bool { return o.pending() }) == slices.Index(m.db.byKey[msg.key], msg)
}

// lock has some other transaction lock a row, or let all of them go.
func (m *model) lock() {
	d := m.db
	if len(d.locked) > 0 && m.chance(60) || len(d.table) == 0 {
		clear(d.locked)
		return
	}
	if msg := d.table[m.rng.IntN(len(d.table))]; msg.visible() {
		m.logf("somebody locks %v", msg)
		d.locked[msg] = true
	}
}

func (m *model) crash() {
	lost := m.db.crash()
	m.logf("the server crashes and loses %d commits; the sequence is at %d", lost, m.db.seq)
	for _, f := range m.forwarders {
		f.cutOff()
	}
}

// members has forwarders come and go.
func (m *model) members() {
	f := m.forwarders[m.rng.IntN(len(m.forwarders))]
	switch p := m.rng.IntN(100); {
	case len(m.forwarders) < 3 && p < 30:
		m.start()
	case p < 50:
		if !f.stopping {
			f.stop()
		}
	case p < 70 && m.kills:
		m.logf("forwarder %d is killed", f.id)
		m.remove(f)
	case m.kills:
		f.frozen = m.db.now.Add(time.Duration(m.rng.IntN(20)) * time.Millisecond)
		m.logf("forwarder %d stands still until %v", f.id, f.frozen.Sub(time.Unix(1e9, 0)))
	}
}

// steal has a forwarder take a lane whose owner knows nothing of it, as when its lease runs out; or its own, when
// somebody else had it meanwhile. It looks first, and takes it in another step. That is worth most when a failure of the
// lane is settled meanwhile, or is about to be.
func (m *model) steal() {
	if m.db.now.Before(m.stealAfter) {
		return
	}
	if m.thief == nil {
		f := m.forwarders[m.rng.IntN(len(m.forwarders))]
		f.looked()
		m.thief, m.lookedAt, m.afterFailure = f, m.db.tick(), m.chance(50)
		return
	}
	f, row, of := m.thief, (*board.Row)(nil), (*forwarder)(nil)
	for _, o := range m.forwarders {
		r := o.lastFailed
		if r == nil || r.Key == "" || m.chance(30) {
			continue
		}
		if at := o.told[r].failedAt; !m.afterFailure && at == 0 || m.afterFailure && at > m.lookedAt {
			row, of = r, o
		}
	}
	if row == nil && m.chance(96) {
		return // perhaps later
	}
	m.thief, m.stealAfter = nil, m.db.now.Add(m.patience*2*time.Millisecond)
	if f.stopping || !slices.Contains(m.forwarders, f) {
		return
	}
	n := m.lanes[m.rng.IntN(len(m.lanes))]
	if row != nil {
		n = row.Term.Lane
	}
	if h := f.held[n]; h != nil {
		f.lose([]board.Term{{Lane: n, Epoch: h.epoch}})
	}
	epoch := m.db.lanes[n].epoch + 1 + m.rng.Int64N(2)
	m.db.lanes[n] = laneRow{f.id, epoch}
	f.toLoad[n] = epoch
	m.logf("forwarder %d takes lane %d with epoch %d", f.id, n, epoch)
	if row != nil && !m.afterFailure {
		// Who fails stands still until the new owner has loaded the heads, and that one does not read before the failure.
		until := m.db.now.Add(10 * time.Millisecond)
		if of != f {
			of.frozenWhile = func() bool { return f.toLoad[n] == epoch }
		}
		f.noReadWhile = func() bool { return f.held[n] != nil && of.told[row].failedAt == 0 && m.db.now.Before(until) }
	}
}

func (m *model) start() {
	f := newForwarder(m)
	m.forwarders = append(m.forwarders, f)
	m.logf("forwarder %d starts", f.id)
}

func (m *model) remove(f *forwarder) {
	m.forwarders = slices.DeleteFunc(m.forwarders, func(o *forwarder) bool { return o == f })
	if len(m.forwarders) == 0 {
		m.start()
	}
}

// landed checks the promise on order when a message reaches the broker.
func (m *model) landed(msg *record) {
	msg.sent++
	if msg.sent > 1 {
		if m.calm {
			m.failf("row %v is sent twice, though nothing went wrong", msg)
		}
		return
	}
	if msg.key == "" || msg.excused {
		return
	}
	for _, e := range m.db.byKey[msg.key] {
		if e != msg && e.sent == 0 && !e.excused && !e.gone && !(e.wasDead && !m.db.holdDead) && e.tx.committed > 0 && e.tx.committed < msg.inserted {
			m.failf("row %v is sent before row %v, whose transaction had committed before it was inserted", msg, e)
		}
	}
}

// check looks at what must be so after each step.
func (m *model) check(thoroughly bool) {
	for _, f := range slices.Clone(m.forwarders) {
		f.check(thoroughly)
		if f.stopped() {
			m.logf("forwarder %d has stopped", f.id)
			f.checkStopped()
			delete(m.db.members, f.id)
			m.remove(f)
		}
	}
}

// run makes the steps, lets everything through, and returns what was wrong.
func (m *model) run(steps []int) string {
	for _, n := range steps {
		m.do(n)
		if m.violated != "" {
			return m.violated
		}
	}
	m.finish()
	return m.violated
}

const (
	endAt     = 1 << 20 // the number of the first step of the end
	longEnd   = 5000    // how many there may be
	longWait  = 2000    // how many for what can be sent while a topic is dead
	afterward = 200     // how many for all to become quiet
)

// finish ends all transactions and lets everything through.
func (m *model) finish() {
	m.pcg.Seed(m.seed, endAt)
	m.finishing = true
	m.logf("the end begins")
	for len(m.db.open) > 0 {
		m.db.end(m.db.open[0], true)
	}
	clear(m.db.locked)
	m.db.log, m.db.paused = nil, nil
	m.readFails, m.settleFails, m.unknown = 0, 0, 0
	m.db.leases = 1000 * time.Hour
	clear(m.db.members) // the leases of the dead run out
	for _, f := range m.forwarders {
		f.dirty, f.frozen, f.frozenWhile, f.noReadWhile = true, time.Time{}, nil, nil
		m.db.heartbeat(f.id, f.stopping)
		f.hold()
	}
	quiet := 0
	for i := 1; i < longEnd && quiet < afterward; i++ {
		m.at = endAt + i
		m.pcg.Seed(m.seed, uint64(m.at))
		m.pass()
		m.resolve()
		for _, f := range slices.Clone(m.forwarders) {
			if i < 10 || i%3 == 0 {
				f.keeper()
			}
			f.reader()
			f.worker()
			f.publisher()
			f.settler()
			f.timer()
			if m.maintains {
				f.maintainer()
			}
		}
		if m.check(i%4 == 0); m.violated != "" {
			return
		}
		if !m.revived && (i > longWait || len(m.free()) == 0) {
			if free := m.free(); len(free) > 0 {
				m.failf("%v waits, though only topic %q is dead, and %q hangs; %v", free[0], m.deadTopic, m.hungTopic, m.forwarders)
				return
			}
			m.logf("all topics can be reached again")
			m.revived = true
		}
		if m.revived && len(m.left()) == 0 {
			if quiet++; m.allQuiet() {
				break
			}
		}
	}
	m.checkEnd()
}

// pass lets time pass: when nothing is under way, up to the next thing that is due.
func (m *model) pass() {
	soon := m.db.now.Add(m.patience * 100 * time.Microsecond)
	next := m.db.now.Add(50 * time.Millisecond)
	for _, f := range m.forwarders {
		if f.busy() {
			m.db.now = soon
			return
		}
		tick, read := f.board.Due()
		for _, t := range []time.Time{tick, read} {
			if !t.IsZero() && t.Before(next) {
				next = t
			}
		}
	}
	if next.Before(soon) {
		next = soon
	}
	m.db.now = next
}

// resolve has an operator deal with what would wait for ever.
func (m *model) resolve() {
	for _, msg := range m.db.table {
		if msg.visible() && !msg.published && (msg.dead && m.db.holdDead || msg.due.Sub(m.db.now) > farOff/2) {
			m.operators = true
			m.maintains = true
			msg.excused = true
			m.db.change([]*record{msg}, func(msg *record) { msg.dead, msg.due, msg.attempts = false, m.db.now, max(1, msg.attempts) })
			m.logf("an operator requeues %v", msg)
		}
	}
}

// left lists what is neither published nor dead.
func (m *model) left() (list []*record) {
	for _, msg := range m.db.table {
		if msg.pending() {
			list = append(list, msg)
		}
	}
	return list
}

// free lists what is left although neither its topic is dead, nor that of another one of its key. (What an operator wants
// sent again may wait for a shadow: the sweep ends at its lowest id.)
func (m *model) free() (list []*record) {
	down := func(msg *record) bool { return msg.topic == m.deadTopic || msg.topic == m.hungTopic }
	waits := map[string]bool{}
	left := m.left()
	for _, msg := range left {
		waits[msg.key] = waits[msg.key] || msg.key != "" && down(msg)
	}
	for _, msg := range left {
		if !down(msg) && !waits[msg.key] && !msg.replayed {
			list = append(list, msg)
		}
	}
	return list
}

func (m *model) allQuiet() bool {
	for _, f := range m.forwarders {
		if f.reading != nil || f.settling != nil || f.more || len(f.calls) > 0 || !f.board.Quiet() {
			return false
		}
	}
	return true
}

func (m *model) checkEnd() {
	if left := m.left(); len(left) > 0 {
		var text []string
		for _, msg := range left {
			text = append(text, fmt.Sprintf("%v attempts %d", msg, msg.attempts))
		}
		m.failf("never settled: %s; %v", strings.Join(text, ", "), m.forwarders)
		return
	}
	for _, msg := range m.db.all {
		if msg.tx.committed > 0 && msg.sent == 0 && !msg.dead && !msg.excused && !msg.gone {
			m.failf("row %v was never sent", msg)
		}
	}
	for _, f := range m.forwarders {
		f.checkEnd()
	}
}
