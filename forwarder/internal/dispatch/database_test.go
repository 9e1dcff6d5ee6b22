package dispatch_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// database does what the statements of package schema do in Postgres, in memory and one step at a time:
// transactions with ids, subtransactions and row ids, snapshots, row locks, and a crash that loses the
// latest commits and hands their ids out again.
type database struct {
	rng *rand.Rand
	now time.Time

	nextXid int64 // the next transaction id
	latest  int64 // the highest transaction id that has completed
	seq     int64 // the last row id
	life    int
	uuids   int
	clock   int // counts what happens, for before and after

	open    []*transaction
	table   []*record // ascending by id
	all     []*record // every message that was ever inserted
	byKey   map[string][]*record
	locked  map[*record]bool // by somebody's transaction
	log     []logged         // commits that a crash may lose
	lanes   [laneCount]laneRow
	members map[int]memberRow
	leases  time.Duration // how long a lease lasts

	paused  []string // topics, by an operator
	batches int      // acts that brought several messages back

	deletes        bool // settling deletes
	blockKeyOnDead bool
	maxAttempts    int

	faults faults
}

const laneCount = 64

// faults are what a broken database, or a broken statement, would do.
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
	excused  bool // no order is promised: it was delayed, or an operator touched it
	state
	what
}

// state is what changes in a row.
type state struct {
	attempts   int
	due        time.Time // zero = NULL
	published  bool
	dead       bool
	gone       bool // deleted
	batch      int  // the act in which an operator wanted it sent again together with others of its key
	generation int  // how often an operator wanted it sent again
}

// act is as the metadata of a row have it.
func (s state) act() string {
	if s.generation == 0 {
		return ""
	}
	return fmt.Sprint(s.generation)
}

// what is what became of a message outside of the database.
type what struct {
	sent     int  // how often it reached the broker
	accepted bool // a dispatcher was told that it did
	skipped  bool // an operator gave it up
	replayed bool // an operator wants it sent again
	resent   int  // the batch it was of when it reached the broker last
	wasDead  bool // so those behind it may have passed it
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

// find returns the row of an id.
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

// logged notes a commit. Sooner or later it is on disk.
func (d *database) logged(undo func()) {
	d.log = append(d.log, logged{undo, d.seq, d.nextXid})
	if len(d.log) > 12 || d.rng.IntN(8) == 0 {
		d.log = nil
	}
}
