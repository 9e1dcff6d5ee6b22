package dispatch

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
)

// Lanes is the number of lanes; they are numbered from 0.
const Lanes = lanes.Count

// Assignment is one period of owning a lane. An assignment that the dispatcher does not have is over.
type Assignment = lanes.Assignment

// Row is a message that was read. The dispatcher owns it from RowsRead on; its fields do not change, except that
// Payload and Metadata are dropped once the message is published.
type Row struct {
	ID                int64
	Assignment        Assignment
	Key, UUID, Topic  string // Key is empty without an ordering key
	Payload, Metadata []byte
	Large             bool   // Payload and Metadata were left out of the read, because there may be no room for them
	Generation        string // set by a requeue
	CreatedAt         time.Time
	Attempts          int    // failed attempts so far; if there are any, a row with a key blocks it
	Untried           bool   // no attempt has failed since a requeue: Attempts is 1 instead of 0, to block the key
	Incarnation       string // incarnation of server and sequence in which it was read

	call Call
}

// BlockedRow is a row with a key that waits for another attempt and so blocks its key, as stored in the database.
type BlockedRow struct {
	ID         int64
	Key, Topic string
	Wait       time.Duration // until the next attempt
	Dead       bool          // it blocks its key until an operator requeues or deletes it
}

// Call is one Publish in flight. It is part of its row, which is read again for each attempt, so a late result cannot
// be mistaken for that of another attempt.
type Call struct {
	Row     *Row
	Attempt int // counting from 1
	Started time.Time
	Tag     any  // the argument of Next: the dispatcher never uses it
	Probe   bool // it tests whether its topic works again

	key         *key // nil without a key
	due         bool // it was read because it fell due, and is read again if it is not kept
	topic       *topic
	links[Call]      // on a queue of its topic, or among the young, the slow or the old calls
	nextOfKey   *Row // the next row of its key's queue
	state       callState
	bypass      bool // it may go although its key is blocked: the next attempt of a blocked row, or the probe of a topic
	waited      bool // for its key, its topic or its next attempt
	published   bool
	results     uint8 // not yet settled: two, if it timed out and succeeded late
}

// Verdict is the result of a call.
type Verdict uint8

const (
	OK          Verdict = iota // published
	Unknown                    // the breaker decides whether it is charged: see breaker.go
	Retry                      // charge an attempt, try again after a backoff
	Unavailable                // pause the topic, charge nothing
	Permanent                  // dead immediately
	Aborted                    // not sent, or the result was not awaited: nothing is known, nothing is charged
)

// Result is the result of a call. Err is passed on to Failure and Report, and never inspected.
type Result struct {
	Verdict Verdict
	Err     error
	Wait    time.Duration // until the next attempt, if the receiver requested one; else 0
	Snooze  bool          // Retry: charge nothing
}

// Config configures a Dispatcher.
type Config struct {
	Concurrency    int   // concurrent calls: young ones in total, and of any age per topic
	Rows           int   // the room: rows in memory, which a few may exceed,
	Bytes          int64 // and the size of their payloads and metadata
	Deferred       int   // maximum number of keys that wait for closed topics. 0 = 1<<20
	KeyRows        int   // rows of one key in memory. 0 = 128
	SlowAfter      time.Duration
	PublishTimeout time.Duration // 0 = none
	BlockKeyOnDead bool

	Backoff       func(attempts int) time.Duration // of a rejected message, with its jitter
	OutageBackoff func(failures int) time.Duration // of an unavailable topic, with its jitter
	Broker        func(topic string) int           // a number for the topic's publisher; nil = one for all
}

// Dispatcher is all knowledge about the messages in the lanes that we own. It is not safe for concurrent use. Events
// are methods, and now must not go back between them. After each event Effects returns its consequences.
type Dispatcher struct {
	cfg     Config
	now     time.Time // of the last event
	stopped bool

	lanes      [Lanes]*lane
	turn       int // index of the lane that is served first
	topics     map[string]*topic
	publishers map[int]*failures
	turns      list[topic, *topic] // topics with rows that may be published now, in round-robin order
	ready      int                 // number of such rows
	degraded   []*topic            // paused or slow topics, and those with keys that still wait for them

	rows      int // in memory, including those in flight
	bytes     int64
	waiting   int // keys that wait for topics
	keyless   int // blocked rows without a key
	unsettled int // results

	young, slow list[Call, *Call] // calls, the oldest first
	old         list[Call, *Call] // expired or hung calls

	published []*Row // for the settler
	failed    []Failure
	settled   []*Row // but not forgotten yet
	orphans   []fetch
	wantDue   dueRows // the next read with room must look for these
	delayed   []*key  // keys that are or were blocked, with many delayed rows: reads leave these out

	nextRetry  time.Time // the earliest retry of all lanes, unless retryMoved is set
	retryMoved bool      // nextRetry must be computed again
	hadRoom    bool
	wantRead   bool // as soon as there is room
	effects    Effects
}

// New makes an empty dispatcher.
func New(cfg Config) *Dispatcher {
	fill := func(field *int, def int) {
		if *field <= 0 {
			*field = def
		}
	}
	fill(&cfg.Concurrency, 1)
	fill(&cfg.Rows, 1)
	fill(&cfg.Deferred, 1<<20)
	fill(&cfg.KeyRows, 128)
	if cfg.Bytes <= 0 {
		cfg.Bytes = 1 << 60
	}
	if cfg.SlowAfter <= 0 {
		cfg.SlowAfter = time.Second
	}
	return &Dispatcher{cfg: cfg, topics: map[string]*topic{}, publishers: map[int]*failures{}}
}

// QuietButPaused reports whether nothing is in memory, unsettled, to be asked for, or late, besides rows that wait for
// topics paused by an operator. It returns those topics. The last read may have skipped rows that were settled after it
// began, if they were requeued.
func (d *Dispatcher) QuietButPaused() (quiet bool, paused []string) {
	if d.rows > 0 || d.unsettled > 0 || len(d.orphans) > 0 {
		return false, nil
	}
	for _, l := range d.lanes {
		if l != nil && !l.releasing && (l.toCatchUp.front != nil || d.retryIsDue(l)) {
			return false, nil
		}
	}
	if !d.hasLane() {
		return true, nil
	}
	if len(d.settled) > 0 || d.wantDue != noDue || d.hasOverdue() {
		return false, nil
	}
	for _, t := range d.degraded {
		switch waits := t.paused || t.deferredIn|t.dueDropped != 0 || !t.closed && t.dueUnseen != 0 || d.isOverdue(t); {
		case waits && t.byOperator:
			paused = append(paused, t.name)
		case waits:
			return false, nil
		}
	}
	return true, paused
}

// hasOverdue reports whether a blocked row is late for another reason than an operator's pause of its topic.
func (d *Dispatcher) hasOverdue() bool {
	for _, l := range d.lanes {
		if l == nil {
			continue
		}
		for name := range l.overdue {
			if t := d.topics[name]; t == nil || !t.byOperator {
				return true
			}
		}
	}
	return false
}

// isOverdue reports whether a blocked row of a topic is late.
func (d *Dispatcher) isOverdue(t *topic) bool {
	return slices.ContainsFunc(d.lanes[:], func(l *lane) bool { return l != nil && l.overdue[t.name] > 0 })
}

// Counts are the dispatcher's counters.
type Counts struct {
	Rows               int // in memory, including those in flight
	Bytes              int64
	Young, Slow, Hung  int // calls in flight; Slow includes the expired
	Waiting, Unsettled int // keys that wait for topics; results
}

// Counts returns the current counters.
func (d *Dispatcher) Counts() Counts {
	c := Counts{Rows: d.rows, Bytes: d.bytes, Young: d.young.n, Waiting: d.waiting, Unsettled: d.unsettled}
	for _, t := range d.topics {
		c.Hung += t.hung
		c.Slow += t.old - t.hung
	}
	return c
}

// BlockedKeys returns the number of messages that block their keys because they wait for another attempt or are dead.
func (d *Dispatcher) BlockedKeys() (n int) {
	for _, l := range d.lanes {
		if l != nil {
			n += len(l.blocked)
		}
	}
	return n - d.keyless
}

// NotPublished returns the topics that are not published to now, because they are closed or exhausted.
func (d *Dispatcher) NotPublished() (names []string) {
	for _, t := range d.degraded {
		if t.closed || t.exhausted {
			names = append(names, t.name)
		}
	}
	return names
}

// IsClosed reports whether a topic is closed.
func (d *Dispatcher) IsClosed(name string) bool {
	t := d.topics[name]
	return t != nil && t.closed
}
