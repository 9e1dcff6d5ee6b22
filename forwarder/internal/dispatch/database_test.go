package dispatch_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// database models in memory, one step at a time, the effects of package schema's statements in Postgres: transactions
// with ids, subtransactions and row ids, snapshots, row locks, and a crash that loses the latest commits and assigns
// their ids again.
type database struct {
	rng *rand.Rand
	now time.Time

	nextXid int64 // the next transaction id
	latest  int64 // the highest completed transaction id
	seq     int64 // the last row id
	life    int
	uuids   int
	clock   int // counts events, to order them

	open    []*transaction
	table   []*record // ascending by id
	all     []*record // every message that was ever inserted
	byKey   map[string][]*record
	locked  map[*record]bool // by another transaction
	log     []logged         // commits that a crash may lose
	lanes   [laneCount]laneRow
	members map[int]memberRow
	leases  time.Duration // how long a lease lasts

	later   []func() // statements that the server has not finished yet
	paused  []string // topics, by an operator
	batches int      // acts that requeued several messages

	deletes        bool // settling deletes
	blockKeyOnDead bool
	maxAttempts    int

	faults faults
}

const laneCount = 64

// faults of a broken database, or a broken statement.
type faults struct {
	settleByID, unfenced, epochKept, nextIsXmax bool
}

// record is a row of the outbox.
type record struct {
	id       int64
	uuid     string
	key      string
	topic    string
	lane     int16
	size     int
	tx       *transaction
	inserted int  // clock
	delayed  bool // no later message waits for it
	acted    int  // clock, when an operator last changed it: it is not ordered; 0 = never
	state
	what
}

// state is the mutable part of a row.
type state struct {
	attempts   int
	untried    bool      // no attempt has failed since a requeue, which set attempts to 1
	due        time.Time // zero = NULL
	published  bool
	dead       bool
	gone       bool // deleted
	discarded  bool // by an operator, since it was last requeued
	batch      int  // the act that requeued it together with others of its key
	generation int  // number of times that an operator requeued it
}

// act returns the row's act, as its metadata have it.
func (s state) act() string {
	if s.generation == 0 {
		return ""
	}
	return fmt.Sprint(s.generation)
}

// what is the history of a message outside the database.
type what struct {
	sent     int  // number of times that it reached the broker
	accepted bool // reported to a dispatcher
	replayed bool // an operator requeued it after it was published
	requeues int  // number of times that an operator requeued it, published or not
	resent   int  // its batch when it last reached the broker
	wasDead  bool // so later messages may have passed it
}

func newDatabase(rng *rand.Rand) *database {
	return &database{rng: rng, now: time.Unix(1e9, 0), nextXid: 100, latest: 99, life: 1,
		byKey: map[string][]*record{}, locked: map[*record]bool{}, members: map[int]memberRow{}}
}

func (d *database) lifeName() string { return fmt.Sprint("life-", d.life) }

func (m *record) visible() bool { return m.tx.committed > 0 && !m.gone }

func (m *record) pending() bool { return m.visible() && !m.published && !m.dead }

func (m *record) String() string {
	s := fmt.Sprintf("%d(%s lane %d", m.id, m.uuid, m.lane)
	if m.key != "" {
		s += " key " + m.key
	}
	return s + " topic " + m.topic + ")"
}

// find returns the row with an id.
func (d *database) find(id int64) *record {
	i, found := slices.BinarySearchFunc(d.table, id, func(m *record, id int64) int { return cmp.Compare(m.id, id) })
	if !found || !d.table[i].visible() {
		return nil
	}
	return d.table[i]
}

func (d *database) tick() int {
	d.clock++
	return d.clock
}

// logged records a commit, which is flushed to disk sooner or later.
func (d *database) logged(undo func()) {
	d.log = append(d.log, logged{undo, d.seq, d.nextXid})
	if len(d.log) > 12 || d.rng.IntN(8) == 0 {
		d.log = nil
	}
}
