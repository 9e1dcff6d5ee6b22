package board

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
)

// Lanes is the number of lanes; they are numbered from 0.
const Lanes = lanes.Count

// Term is one period of owning a lane. A term that the board does not have is over.
type Term = lanes.Term

// Row is a message that was read. The board owns it from RowsRead on; its fields do not change, except that Payload and
// Metadata are dropped once the message is published.
type Row struct {
	ID                int64
	Term              Term
	Key, UUID, Topic  string // Key is empty without an ordering key
	Payload, Metadata []byte
	Large             bool   // Payload and Metadata were left out of the read, because there may be no room for them
	Generation        string // set by a requeue
	CreatedAt         time.Time
	Attempts          int    // failed attempts so far
	Life              string // incarnation of server and sequence in which it was read

	call Call
}

// Head is a row with a key that waits for another attempt and so blocks its key, as stored in the database.
type Head struct {
	ID         int64
	Key, Topic string
	Attempts   int
	Wait       time.Duration // until the next attempt
	Dead       bool          // it blocks its key until an operator requeues or deletes it
}

// Call is one Publish in flight. It is part of its row, which is read again for each attempt, so a late result cannot
// be mistaken for that of another attempt.
type Call struct {
	Row     *Row
	Attempt int // counting from 1
	Started time.Time
	Tag     any  // the argument of Next: the board never uses it
	Probe   bool // it tests whether its topic works again

	key         *key // nil without a key
	due         bool // it was read because it fell due, and is read again if it is not kept
	topic       *topic
	links[Call]      // on a queue of its topic, or among the young, the slow or the old calls
	nextOfKey   *Row // the next row of its key's chain
	state       callState
	pass        bool // it may go although its key is blocked: the next attempt of a head, or the probe of a topic
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
}

// Config configures a Board.
type Config struct {
	Concurrency    int   // concurrent calls: young ones in total, and of any age per topic
	Rows           int   // the room: rows in memory, which a few may exceed,
	Bytes          int64 // and the size of their payloads and metadata
	Deferred       int   // maximum number of keys that wait for closed topics. 0 = 1<<20
	Chain          int   // rows of one key in memory. 0 = 128
	SlowAfter      time.Duration
	PublishTimeout time.Duration // 0 = none
	BlockKeyOnDead bool

	Backoff       func(attempts int) time.Duration // of a rejected message, with its jitter
	OutageBackoff func(failures int) time.Duration // of an unavailable topic, with its jitter
	Broker        func(topic string) int           // a number for the topic's publisher; nil = one for all
}

// Board is all knowledge about the messages in the lanes that we own. It is not safe for concurrent use. Events are
// methods, and now must not go back between them. After each event Effects returns its consequences.
type Board struct {
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
	keyless   int // heads without a key
	unsettled int // results

	young, slow list[Call, *Call] // calls, the oldest first
	old         list[Call, *Call] // expired or hung calls
	calls       int               // of any age

	published []*Row // for the settler
	failed    []Failure
	settled   []*Row // but not forgotten yet
	orphans   []orphan
	wantDue   bool   // the next read must look for due rows
	delayed   []*key // keys that are or were blocked, with many delayed rows: reads leave these out

	wantTopics, sawTopics bool // that read must not leave out closed topics; the last one did not

	nextRetry   time.Time // the earliest of all lanes, unless it is
	retryMoved  bool      // out of date
	hadRoom     bool
	moreToCatch bool // more is left to catch up with
	effects     Effects
}

// New makes an empty board.
func New(cfg Config) *Board {
	fill := func(field *int, def int) {
		if *field <= 0 {
			*field = def
		}
	}
	fill(&cfg.Concurrency, 1)
	fill(&cfg.Rows, 1)
	fill(&cfg.Deferred, 1<<20)
	fill(&cfg.Chain, 128)
	if cfg.Bytes <= 0 {
		cfg.Bytes = 1 << 60
	}
	if cfg.SlowAfter <= 0 {
		cfg.SlowAfter = time.Second
	}
	return &Board{cfg: cfg, topics: map[string]*topic{}, publishers: map[int]*failures{}}
}

// Quiet reports whether nothing is in memory, unsettled, to be asked for, or late. The last read may have skipped rows
// that were settled after it began, if they were requeued.
func (b *Board) Quiet() bool {
	quiet, paused := b.QuietButPaused()
	return quiet && len(paused) == 0
}

// QuietButPaused is Quiet without the rows that wait for topics paused by an operator. It returns those topics.
func (b *Board) QuietButPaused() (quiet bool, paused []string) {
	if b.rows > 0 || b.unsettled > 0 || len(b.orphans) > 0 {
		return false, nil
	}
	for _, l := range b.lanes {
		if l != nil && !l.handing && (l.catching.front != nil || b.retryIsDue(l)) {
			return false, nil
		}
	}
	if !b.hasLane() {
		return true, nil
	}
	if len(b.settled) > 0 || b.wantDue || b.hasOverdue() {
		return false, nil
	}
	for _, t := range b.degraded {
		switch waits := t.paused || t.lanes != 0 || !t.closed && t.unseen != 0 || b.isOverdue(t); {
		case waits && t.byOperator:
			paused = append(paused, t.name)
		case waits:
			return false, nil
		}
	}
	return true, paused
}

// hasOverdue reports whether a head is late for another reason than an operator's pause of its topic.
func (b *Board) hasOverdue() bool {
	for _, l := range b.lanes {
		if l == nil {
			continue
		}
		for name := range l.overdue {
			if t := b.topics[name]; t == nil || !t.byOperator {
				return true
			}
		}
	}
	return false
}

// isOverdue reports whether a head of a topic is late.
func (b *Board) isOverdue(t *topic) bool {
	return slices.ContainsFunc(b.lanes[:], func(l *lane) bool { return l != nil && l.overdue[t.name] > 0 })
}
