package dispatch_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// model is one schedule: some forwarders on one database, and a random interleaving of single steps. After each step it
// checks the guarantees of the design, and at the end that nothing was lost.
//
// Each step has its own random numbers, so leaving out steps can shorten a failing schedule.
type model struct {
	pcg  *rand.PCG
	rng  *rand.Rand
	side *rand.Rand // for edges
	seed uint64
	cfg  dispatch.Config

	db           *database
	lanes        []int16 // lanes with messages
	topics       []string
	keys         int
	messages     map[string]*record // by UUID
	forwarders   []*forwarder
	forwarderIDs int
	thief        *forwarder // about to acquire a lane
	readAt       int        // clock
	stealAfter   time.Time  // the last theft should have an effect first
	afterFailure bool       // it waits for the settling of a failure

	// What happens in this schedule.
	allLanes    bool // lanes without messages are read too; otherwise Drain would never return
	edges       bool // calls of Drain, and steps at the very end of a lease
	calm        bool // no event that excuses a duplicate
	tight       bool // reads and publishes start only when the dispatcher requests it
	small       bool // spans are short
	crashes     bool
	operators   bool
	kills       bool // forwarders die or freeze
	maintains   bool
	ignoreLease bool
	deadTopic   string // unreachable until everything else is published; "" = none
	hungTopic   string // its publishes do not return until then
	revived     bool
	patience    time.Duration // a factor
	keeps       int           // percent, like the following ones: how often the rebalancer gets a turn
	rejects     int
	unavailable int
	slow        int
	readFails   int
	settleFails int
	unknown     int

	blind      bool // errors have no verdict
	landsEarly bool // a message may reach the broker although its publish fails
	leavesOut  bool // reads leave out due rows of closed topics
	withholds  bool // reads first leave out the payloads of nearly all rows
	apart      bool // others act between the reader's plan and its read, and before loaded rows are used

	variant variant

	finishing  bool
	draining   bool // Drain was called at the end
	overflowed bool // too many keys wait for closed topics: a key's rows are no longer ordered across topics, or delayed
	violated   string
	logging    bool
	events     []string
	at         int // step
	acts       int // steps made
}

func newModel(seed uint64, v variant, logging bool) *model {
	m := &model{
		variant: v, logging: logging, pcg: rand.NewPCG(seed, 0), seed: seed, messages: map[string]*record{},
		topics: []string{"a", "b", "c"},
	}
	m.apart = seed%10 == 4
	m.rng, m.edges = rand.New(m.pcg), seed%4 == 1 && (v.trouble == whatever || v.trouble == "")
	m.db = newDatabase(m.rng)
	m.lanes = []int16{int16(m.rng.IntN(22)), int16(22 + m.rng.IntN(21)), int16(43 + m.rng.IntN(21))}
	m.keys = 1 + m.rng.IntN(6)
	m.calm, m.tight, m.small = m.chance(25), m.chance(50), m.chance(50)
	if !m.calm {
		m.crashes, m.operators, m.kills, m.ignoreLease = m.chance(30), m.chance(40), m.chance(50), m.chance(30)
	}
	m.blind = rand.New(rand.NewPCG(seed, 1)).IntN(100) < 30
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
	m.db.deletes, m.db.blockKeyOnDead = m.chance(30), m.chance(20)
	m.db.leases = 6 * time.Millisecond
	if m.calm || m.chance(30) {
		m.db.leases = time.Hour
	}
	m.cfg = dispatch.Config{
		Concurrency: 1 + m.rng.IntN(5), Rows: 1 + m.rng.IntN(20), Bytes: 1 << 30,
		Deferred: 2 + m.rng.IntN(19), KeyRows: 1 + m.rng.IntN(4),
		SlowAfter: 2 * time.Millisecond, BlockKeyOnDead: m.db.blockKeyOnDead,
		Backoff:       func(int) time.Duration { return m.backoff() },
		OutageBackoff: func(int) time.Duration { return m.delay() },
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
		m.cfg.Rows, m.cfg.Bytes = max(m.cfg.Rows, 8), max(m.cfg.Bytes, 800) // a row takes an eighth, its maximum
	}
	if rand.New(rand.NewPCG(seed, 3)).IntN(100) < 10 { // a slow topic may have several rows in memory
		m.cfg.Rows, m.cfg.Bytes = 200, 1<<30
	}
	if m.chance(50) {
		m.cfg.Deferred = 1 << 20
	}
	if dead := rand.New(rand.NewPCG(seed, 2)); v.trouble == drains && dead.IntN(2) == 0 {
		m.db.leaveBehind(time.Duration(dead.IntN(100)) * time.Millisecond)
	}
	for range 1 + m.rng.IntN(3) {
		m.start()
		for range 3 { // it acquires its lanes
			m.forwarders[0].rebalancer()
		}
	}
	m.withholds = m.chance(40)
	return m
}

// String describes the schedule.
func (m *model) String() string {
	return fmt.Sprintf("calm %v, tight %v, small %v, crashes %v, operators %v, kills %v, maintains %v, deletes %v, "+
		"keep dead %v, dead topic %q, hung topic %q, %+v",
		m.calm, m.tight, m.small, m.crashes, m.operators, m.kills, m.maintains, m.db.deletes, m.db.blockKeyOnDead,
		m.deadTopic, m.hungTopic,
		[]any{m.cfg.Concurrency, m.cfg.Rows, m.cfg.Bytes, m.cfg.Deferred, m.cfg.KeyRows, m.cfg.PublishTimeout})
}

func (m *model) chance(percent int) bool { return m.rng.IntN(100) < percent }

// delay returns the wait of a backoff.
func (m *model) delay() time.Duration {
	return m.patience * time.Duration(1000+m.rng.IntN(4000)) * time.Microsecond
}

// backoff is delay, or so long that only an operator can end it.
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

// part returns how many results of a list are settled in one statement.
func (m *model) part(n int) int {
	if n == 0 || m.chance(50) {
		return n
	}
	return m.rng.IntN(n + 1)
}

func (m *model) logf(format string, args ...any) {
	if m.logging {
		m.events = append(m.events, fmt.Sprintf("%d %s: ", m.at, m.db.now.Sub(time.Unix(1e9, 0)))+
			fmt.Sprintf(format, args...))
	}
}

func (m *model) failf(format string, args ...any) {
	if m.violated == "" {
		m.violated = fmt.Sprintf(format, args...)
		m.logf("VIOLATION: %s", m.violated)
	}
}

func (m *model) blockedRow(v version) dispatch.BlockedRow {
	h := dispatch.BlockedRow{ID: v.id, Key: v.key, Topic: v.topic, Dead: v.seen.dead}
	if !h.Dead {
		h.Wait = max(0, v.seen.due.Sub(m.db.now))
	}
	return h
}

// allBlocked lists the blocked rows of all lanes.
func (m *model) allBlocked() map[int16][]dispatch.BlockedRow {
	blocked := map[int16][]dispatch.BlockedRow{}
	for _, n := range m.lanes {
		for _, v := range m.db.blocked(n, 0, 1<<30) {
			blocked[n] = append(blocked[n], m.blockedRow(v))
		}
	}
	return blocked
}

// advance lets time pass: now and then exactly to the end of a lease.
func (m *model) advance(by time.Duration) {
	next := m.db.now.Add(by)
	if m.edges {
		m.side = rand.New(rand.NewPCG(m.seed, uint64(m.at)+1<<40))
		for _, f := range m.forwarders {
			if f.leaseUntil.After(m.db.now) && f.leaseUntil.Before(next) {
				next = f.leaseUntil
			}
		}
	}
	m.db.now = next
}

// do makes one step of the schedule.
func (m *model) do(step int) {
	m.at = step
	m.acts++
	m.pcg.Seed(m.seed, uint64(step)+1)
	m.advance(time.Duration(m.rng.IntN(300)) * time.Microsecond)
	if len(m.db.later) > 0 && m.chance(10) {
		m.ends()
	}
	p := m.rng.IntN(1000)
	of := func(part int) bool { // this many times in a thousand steps
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

// ends lets the server finish a statement for which nobody may wait any more.
func (m *model) ends() {
	m.logf("a late statement ends")
	next := m.db.later[0]
	m.db.later = m.db.later[1:]
	next()
}

// landed checks the order when a message reaches the broker.
func (m *model) landed(msg *record) {
	msg.sent++
	if msg.sent > 1 {
		if m.calm && msg.sent > 1+msg.requeues {
			m.failf("row %v is sent %d times although nothing went wrong, with %d requeues", msg, msg.sent, msg.requeues)
		}
		return
	}
	if msg.key == "" || msg.acted > 0 {
		return
	}
	for _, e := range m.db.byKey[msg.key] {
		if e != msg && e.sent == 0 && !e.delayed && e.acted == 0 && !e.gone && !(e.wasDead && !m.db.blockKeyOnDead) &&
			e.tx.committed > 0 && e.tx.committed < msg.inserted && (e.topic == msg.topic && !msg.delayed || !m.overflowed) {
			m.failf("row %v is sent before row %v, whose transaction had committed before it was inserted", msg, e)
		}
	}
}

// checkTogether checks that messages of one key that an operator requeued in one act are published in order.
func (m *model) checkTogether(r *dispatch.Row, msg *record) {
	if msg.batch == 0 || r.Generation != msg.act() {
		return
	}
	for _, e := range m.db.byKey[msg.key] {
		if e.batch == msg.batch && e.id < msg.id && e.pending() && e.resent != e.batch {
			m.failf("row %v is published before row %v, which an operator requeued together with it", msg, e)
		}
	}
}

// check checks the invariants after each step.
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

// run makes the steps, resolves everything at the end, and returns any problem.
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
