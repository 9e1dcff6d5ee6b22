package board

import "time"

// Lanes is how many lanes there are; they are numbered from 0.
const Lanes = 64

// Term is one time of owning a lane. All in memory belongs to one; a term that the board does not have is over.
type Term struct {
	Lane  int16
	Epoch int64 // raised whenever the lane is taken; 0 is nobody's
}

// Row is a message that was read. The board owns it from RowsRead on; the fields do not change, but for Payload and
// Metadata, which are dropped once the message is published.
type Row struct {
	ID                int64
	Term              Term
	Key, UUID, Topic  string // Key is empty without an ordering key
	Payload, Metadata []byte
	CreatedAt         time.Time
	Attempts          int    // failed ones so far
	Life              string // of server and sequence, in which it was read

	call Call
}

// Head is a row with a key that waits for another attempt and so holds its key, as the database has it.
type Head struct {
	ID         int64
	Key, Topic string
	Attempts   int
	Wait       time.Duration // until the next attempt
	Dead       bool          // it holds its key until somebody requeues or deletes it
}

// Call is one Publish under way. It is a part of its row, which is read anew for each attempt.
type Call struct {
	Row     *Row
	Attempt int // counting from 1
	Started time.Time
}

// Verdict says what became of a call.
type Verdict uint8

const (
	OK          Verdict = iota // published
	Rejected                   // charge an attempt, try again after a backoff
	Unavailable                // pause the topic, charge nothing
	Permanent                  // dead at once
	Aborted                    // not sent, or nobody waited for the answer: nothing is known, nothing is charged
)

// Result is what became of a call. Err is carried to Failure and Report, and never looked into.
type Result struct {
	Verdict Verdict
	Err     error
}

// Config configures a Board.
type Config struct {
	Concurrency    int   // calls at once: young ones in all, and of any age per topic
	Rows           int   // the room: how many rows are in memory at most, but for a few,
	Bytes          int64 // and how large their payloads and metadata are together
	Parked         int   // ids parked in all; beyond it the shadow. 0 = 1<<18
	KeyParked      int   // ids parked of one key; beyond it the shadow. 0 = 65536
	Chain          int   // rows of one key in memory. 0 = 128
	SlowAfter      time.Duration
	PublishTimeout time.Duration // 0 = none
	HoldDead       bool

	Backoff      func(attempts int) time.Duration // of a rejected message, with its jitter
	PauseBackoff func(failures int) time.Duration // of an unavailable topic, with its jitter
}

// Board is everything that is known about the messages in the lanes that we own. It is not safe for concurrent
// use. Events are methods, and now is not to go back between them. After each event Effects says what came of it.
type Board struct{ cfg Config }

// New makes an empty board.
func New(cfg Config) *Board { return &Board{cfg: cfg} }

// LaneTaken starts a term, with all the heads of its lane, loaded after the lane was taken and before its first read. Not
// to be called during a read.
func (b *Board) LaneTaken(now time.Time, t Term, heads []Head) {}

// LanesLost ends terms: somebody else has the lanes, or they were given back. What is under way counts only if it
// succeeds.
func (b *Board) LanesLost(terms ...Term) {}

// HandBack stops work on terms. Effects.Free names each once nothing of it is under way or unsettled; LanesLost
// ends it when the database has the lane back.
func (b *Board) HandBack(terms ...Term) {}

// Stop hands back all lanes. From now on nothing is asked for and Next returns nil.
func (b *Board) Stop() {}

// Quiet says that nothing is in memory, nothing unsettled and nothing to ask.
func (b *Board) Quiet() bool { return true }
