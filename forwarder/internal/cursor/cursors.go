package cursor

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
)

// Lanes is the number of lanes. Data by lane is an array indexed by the lane's number.
const Lanes = lanes.Count

// Cursors tracks how far each lane was read and which transactions may still commit rows below that.
type Cursors struct {
	lanes       [Lanes]lane
	tracker     tracker
	limiter     limiter
	incarnation string // of the last complete read, as the server names it; "" = none yet
	loaded      string // the incarnation in which the blocked keys of the lanes were loaded
	resets      int
	resting     bool // that read reached the end and did not have far to go
	dense       bool // most of the ids that the read covered were rows for us
}

// lane is a lane that is read. The zero value is a lane that is not.
type lane struct {
	epoch  int64
	cursor int64 // all ids up to here were read, except those that the tracker brings back
	full   bool  // the last read hit its limit, so there is more
}

// Request is the request of one read. It is a value: later changes of the cursors do not affect it.
type Request struct {
	Xids, Bounds       []int64      // tracked transactions, each with the bound that all its rows are above
	Los, SegmentBounds []int64      // the same for ranges of transaction ids, by their lower ends
	Epochs             [Lanes]int64 // 0 = not read
	Cursors            [Lanes]int64
	Limits             [Lanes]int64 // rows; 0 = no room
	Rewound            [Lanes]int64 // how many more if the read starts below the cursor, where known rows come again
	Span               int64        // how many ids past its start a lane is read,
	Again              int64        // and how many ids of one range are read again
	Whole              int64        // the largest row that comes with its payload
	Bytes              int64        // limit for all payloads that are read afterwards, except the first
	// Single means that all lanes are to be read as one range of ids: they start at one id, and most of the rows there are
	// theirs. One limit then applies to all of them together: the sum of theirs.
	Single bool
	ranges bool // the next request may be single
	resets int
}

// Answer is the result of a complete read.
type Answer struct {
	Incarnation string // the server's name for its own incarnation and that of the sequence's file
	Snapshot    Snapshot
	Rewind      int64 // the lowest bound of a tracked transaction that is no longer in progress; -1 = none
	Owned       [Lanes]bool
	Counts      [Lanes]int64 // rows past the start of the lane
	Last        [Lanes]int64 // the highest id of these rows
	Cut         [Lanes]int64 // the lowest id whose payload did not come: the lane was read up to there; 0 = all came
	First       int64        // the lowest id in all lanes
	Rows        int          // of all kinds, with their payloads
	Bytes       int64        // of these
	Took        time.Duration
	TimedOut    bool // some payloads for which there was room did not arrive
}

// Progress is the result of a read.
type Progress struct {
	More    bool // there may be more to read
	Short   bool // the range of ids did not reach the end of a lane
	Rewound bool // a lane was read from below its cursor
	// Changed means another server or sequence, or one that lost data: ids do not mean the same messages as in the
	// previous read. The answer was not applied: discard it and all lanes (see Reset).
	Changed bool
}

// New makes a Cursors that reads no lane.
func New() *Cursors { return &Cursors{limiter: newLimiter()} }

// Take starts a lane from its first id. Its blocked keys were loaded in an incarnation of the server, and mean nothing
// if the first read is of another one.
func (c *Cursors) Take(number int16, epoch int64, incarnation string) {
	c.lanes[number] = lane{epoch: epoch, full: true}
	c.loaded = cmp.Or(c.loaded, incarnation)
}

// Drop ends a lane.
func (c *Cursors) Drop(number int16) { c.lanes[number] = lane{} }

// At returns up to which id a lane was read, and under which epoch; 0 = it is not read.
func (c *Cursors) At(number int16) (cursor, epoch int64) {
	return c.lanes[number].cursor, c.lanes[number].epoch
}

// Incarnation returns the name of the incarnation of the last complete read, and the value of the sequence then; ""
// before the first. A Reset begins another one even if the server's name for it is the same, because its sequence was
// set back.
func (c *Cursors) Incarnation() (name string, seq int64) {
	if c.incarnation == "" {
		return "", 0
	}
	return incarnationName(c.resets, c.incarnation), c.tracker.seq
}

// Incarnation returns the name of the incarnation that an answer to the request belongs to.
func (r *Request) Incarnation(a *Answer) string { return incarnationName(r.resets, a.Incarnation) }

func incarnationName(resets int, server string) string { return strconv.Itoa(resets) + " " + server }

// ServerIncarnation returns the server's own name for an incarnation.
func ServerIncarnation(name string) string {
	_, server, _ := strings.Cut(name, " ")
	return server
}

// Reset forgets everything that was read: in a new incarnation of the server ids mean other messages, and knowledge of
// transactions is void.
func (c *Cursors) Reset() {
	*c = Cursors{limiter: c.limiter, resets: c.resets + 1}
}

// Next makes the request for the next read. ranges means that it may be a single range of ids. known returns how many
// known rows of a lane need not be read again, above the cursor and in total: a read returns them nevertheless, so its
// limit must leave room for them.
func (c *Cursors) Next(room Room, ranges bool, known func(lane int16, cursor int64) (above, all int)) Request {
	r := Request{Span: c.limiter.span, Again: c.limiter.span, ranges: ranges, resets: c.resets}
	r.Xids, r.Bounds, r.Los, r.SegmentBounds = c.tracker.args()
	for n := range c.lanes {
		r.Epochs[n], r.Cursors[n] = c.lanes[n].epoch, c.lanes[n].cursor
	}
	again := c.setLimits(&r, room, known)
	c.trySingle(&r)
	c.setSizes(&r, room, again)
	return r
}

// Complete applies the answer to a request.
func (c *Cursors) Complete(r Request, a Answer) Progress {
	before := cmp.Or(c.incarnation, c.loaded)
	if before != "" && (a.Incarnation != before || a.Snapshot.Seq < c.tracker.seq) {
		return Progress{More: true, Changed: true}
	}
	c.incarnation = a.Incarnation
	p := c.move(&r, &a)
	c.tracker.observe(a.Snapshot)
	c.limiter.measure(&a)
	if !r.Single {
		c.limiter.adapt(p, a.Took)
	}
	return p
}

// Failed records that a read failed. Nothing moves.
func (c *Cursors) Failed(timedOut bool) {
	if timedOut {
		c.dense = false
		c.limiter.timedOut()
	}
}

// WritersSeen applies which transactions may have written to the outbox, determined after the last complete read and
// before the next request.
func (c *Cursors) WritersSeen(writers map[uint32]bool) { c.tracker.writersSeen(writers) }

// Lag returns how many ids the lowest bound of a transaction in progress is behind the ids that were read.
func (c *Cursors) Lag() int64 { return c.tracker.lag() }

// BelowOpen returns an id below every message whose transaction had not ended by the last complete read.
func (c *Cursors) BelowOpen() int64 { return c.tracker.belowOpen() }
