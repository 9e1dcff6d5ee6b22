package board

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
)

// Lanes is how many lanes there are; they are numbered from 0.
const Lanes = lanes.Count

// Term is one time of owning a lane. One that the board does not have is over.
type Term = lanes.Term

// Row is a message that was read. The board owns it from RowsRead on; the fields do not change, but for Payload and
// Metadata, which are dropped once the message is published.
type Row struct {
	ID                int64
	Term              Term
	Key, UUID, Topic  string // Key is empty without an ordering key
	Payload, Metadata []byte
	Large             bool   // Payload and Metadata were left out of the read, as there may be no room for them
	Generation        string // of those that an operator had sent again
	CreatedAt         time.Time
	Attempts          int    // failed ones so far
	Life              string // of server and sequence, in which it was read

	call Call
}

// Head is a row with a key that waits for another attempt and so blocks its key, as the database has it.
type Head struct {
	ID         int64
	Key, Topic string
	Attempts   int
	Wait       time.Duration // until the next attempt
	Dead       bool          // it blocks its key until an operator requeues or deletes it
}

// Call is one Publish under way. It is a part of its row, which is read anew for each attempt, so a late answer cannot
// be taken for another attempt's.
type Call struct {
	Row     *Row
	Attempt int // counting from 1
	Started time.Time
	Again   bool // the row was handed out before: an attempt was charged, or it was sent back in this term
	Tag     any  // what the caller gave Next: the board never looks into it

	key         *key // nil without one
	due         bool // it was read because it fell due, and comes again if it is not kept
	topic       *topic
	links[Call]      // on a queue of its topic, or among the young, the slow or the old calls
	behind      *Row // the next row of its key's chain
	state       callState
	pass        bool // it may go although its key is blocked: a head's next attempt, or a topic's trial
	waited      bool // for its key, its topic or its next attempt
	published   bool
	results     uint8 // not settled yet: two, if it timed out and succeeded late
}

// Verdict says what became of a call.
type Verdict uint8

const (
	OK          Verdict = iota // published
	Unknown                    // what else fails decides whether it is charged: see breaker.go
	Retry                      // charge an attempt, try again after a backoff
	Unavailable                // pause the topic, charge nothing
	Permanent                  // dead at once
	Aborted                    // not sent, or the answer was not awaited: nothing is known, nothing is charged
)

// Result is what became of a call. Err is carried to Failure and Report, and never looked into.
type Result struct {
	Verdict Verdict
	Err     error
	Wait    time.Duration // until the next attempt, where the receiver asked for one; else 0
}

// Config configures a Board.
type Config struct {
	Concurrency    int   // calls at once: young ones in all, and of any age per topic
	Rows           int   // the room: how many rows are in memory at most, but for a few,
	Bytes          int64 // and how large their payloads and metadata are together
	Deferred       int   // keys that wait for closed topics at most. 0 = 1<<20
	Chain          int   // rows of one key in memory. 0 = 128
	SlowAfter      time.Duration
	PublishTimeout time.Duration // 0 = none
	BlockKeyOnDead bool

	Backoff       func(attempts int) time.Duration // of a rejected message, with its jitter
	OutageBackoff func(failures int) time.Duration // of an unavailable topic, with its jitter
	Broker        func(topic string) int           // a number for the publisher that it goes to; nil = one for all
}

// Board is everything that is known about the messages in the lanes that we own. It is not safe for concurrent
// use. Events are methods, and now is not to go back between them. After each event Effects says what came of it.
type Board struct {
	cfg     Config
	now     time.Time // of the last event
	stopped bool

	lanes      [Lanes]*lane
	turn       int // the lane that is served first
	topics     map[string]*topic
	publishers map[int]*publisher
	turns      list[topic, *topic] // the topics with rows that may be published now; they take turns
	ready      int                 // such rows
	troubled   []*topic            // paused or slow ones, and those whose keys still wait

	rows      int // in memory, with those under way
	bytes     int64
	waiting   int // keys that wait for topics
	loose     int // heads without a key
	unsettled int // results

	young, slow list[Call, *Call] // calls, the oldest first
	old         list[Call, *Call] // those that are expired or hung
	calls       int               // of any age

	published []*Row // for the settler
	failed    []Failure
	settled   []*Row // but not forgotten yet
	strays    []stray
	wantDue   bool // a read is to look for what fell due

	wantTopics, sawTopics bool // such a read is not to leave out closed topics; the last one did not

	nextRetry  time.Time // the first of all lanes, unless it is
	retryMoved bool      // out of date
	hadRoom    bool
	asksMore   bool // there is more to catch up with
	effects    Effects
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
	return &Board{cfg: cfg, topics: map[string]*topic{}, publishers: map[int]*publisher{}}
}

// Quiet says that nothing is in memory, nothing unsettled, nothing to ask and nothing late. What was settled since the
// last read began that read may have passed by, if it has come again.
func (b *Board) Quiet() bool {
	quiet, paused := b.QuietButPaused()
	return quiet && len(paused) == 0
}

// QuietButPaused is Quiet but for what waits for topics that an operator has paused, which it names.
func (b *Board) QuietButPaused() (quiet bool, paused []string) {
	if b.rows > 0 || b.unsettled > 0 || len(b.strays) > 0 {
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
	if len(b.settled) > 0 || b.wantDue || b.isLate() {
		return false, nil
	}
	for _, t := range b.troubled {
		switch waits := t.paused || t.lanes != 0 || !t.closed && t.unseen != 0 || b.hasLate(t); {
		case waits && t.byOperator:
			paused = append(paused, t.name)
		case waits:
			return false, nil
		}
	}
	return true, paused
}

// isLate says whether a head is late, and not as an operator has paused its topic.
func (b *Board) isLate() bool {
	for _, l := range b.lanes {
		if l == nil {
			continue
		}
		for name := range l.late {
			if t := b.topics[name]; t == nil || !t.byOperator {
				return true
			}
		}
	}
	return false
}

// hasLate says whether a head of a topic is late.
func (b *Board) hasLate(t *topic) bool {
	return slices.ContainsFunc(b.lanes[:], func(l *lane) bool { return l != nil && l.late[t.name] > 0 })
}
