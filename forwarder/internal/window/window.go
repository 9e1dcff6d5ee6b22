// Package window decides which ids the forwarder reads next, so that rows are found in an order that respects
// commits although ids are not handed out in that order. Package forwarder explains the protocol.
//
// It is pure: it knows no clock, no database and no row, only what each read answered. One goroutine drives
// it: Next, then Complete or Failed, and between two reads whatever else there is to say.
package window

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
)

// Lanes is how many lanes there are. Everything by lane is an array that the lane's number is the index of.
const Lanes = lanes.Count

// Window knows how far each lane was read and which transactions may still commit rows below that.
type Window struct {
	lanes   [Lanes]lane
	tracker tracker
	limiter limiter
	life    string // of the last complete read, as the server names it; "" = none yet
	loaded  string // the life in which it was learned what blocks keys in the lanes
	resets  int
	resting bool // that read reached the end and had not far to go
	dense   bool // most of the ids that read went over were rows for us
}

// lane is one that is read. Its zero value is one that is not.
type lane struct {
	epoch int64
	mark  int64 // all ids up to here were read, but for what the tracker brings back
	full  bool  // the last read hit its limit, so there is more
}

// Request is what one read asks for. It is a value: what happens to the window meanwhile changes nothing in it.
type Request struct {
	Xids, Bounds       []int64      // tracked transactions, each with the id that all its rows are above
	Los, SegmentBounds []int64      // the same for stretches of transaction ids, by their lower ends
	Epochs             [Lanes]int64 // 0 = not read
	Marks              [Lanes]int64
	Limits             [Lanes]int64 // rows; 0 = there is no room
	Rewound            [Lanes]int64 // how many more if the read starts below the mark, where known rows come again
	Stretch            int64        // how many ids past its start a lane is read,
	Again              int64        // and one range of them that is read again
	Whole              int64        // how large a row may be to come with its payload
	Bytes              int64        // how large the payloads may be together that are read afterwards, but for the first
	// Single says that all lanes are to be read as one range of ids: they start at one place, and most of what is there is
	// theirs. One limit then holds for all of them together: the sum of theirs.
	Single bool
	ranges bool // the next request may be single
	resets int
}

// Answer is what a complete read found.
type Answer struct {
	Life     string // how the server names one life of its own and of the sequence's file
	Snapshot Snapshot
	Rewind   int64 // the lowest bound of a tracked transaction that is no longer in progress; -1 = none
	Owned    [Lanes]bool
	Counts   [Lanes]int64 // rows past the start of the lane
	Last     [Lanes]int64 // the highest id of them
	Cut      [Lanes]int64 // the lowest id of them that there was no room for: the lane was read up to there; 0 = there was
	First    int64        // the lowest id of those of all lanes
	Rows     int          // of all kinds, that came with their payloads
	Bytes    int64        // of these
	Took     time.Duration
	TimedOut bool // not all payloads came that there was room for
}

// Progress is what a read came to.
type Progress struct {
	More    bool // there may be more to read
	Short   bool // the stretch did not reach the end of a lane
	Rewound bool // a lane was read from below its mark on
	Life    Life
}

// Life says whether ids still mean what they meant at the read before.
type Life int

const (
	// Same is the answer of the same server and sequence, or the first of all.
	Same Life = iota
	// Changed is that of another one, or of one that lost what it had. Nothing of it was taken over: the answer is to be
	// thrown away, and so are all lanes: see Reset.
	Changed
)

// New makes a Window that reads no lane.
func New() *Window { return &Window{limiter: newLimiter()} }

// Take starts a lane from its first id on. What blocks keys in it was learned in a life of the server, and means
// nothing if the first read is of another one.
func (w *Window) Take(number int16, epoch int64, life string) {
	w.lanes[number] = lane{epoch: epoch, full: true}
	w.loaded = cmp.Or(w.loaded, life)
}

// Drop ends a lane.
func (w *Window) Drop(number int16) { w.lanes[number] = lane{} }

// Mark returns up to which id a lane was read, and under which epoch; 0 = it is not read.
func (w *Window) Mark(number int16) (mark, epoch int64) {
	return w.lanes[number].mark, w.lanes[number].epoch
}

// Life names the life of the last complete read, with how far the sequence was then; "" before the first. A Reset
// begins another one also if the server has the same name for it, because its sequence was set back.
func (w *Window) Life() (name string, seq int64) {
	if w.life == "" {
		return "", 0
	}
	return nameLife(w.resets, w.life), w.tracker.seq
}

// Life names the life of what an answer to the request holds.
func (r *Request) Life(a *Answer) string { return nameLife(r.resets, a.Life) }

func nameLife(resets int, server string) string { return strconv.Itoa(resets) + " " + server }

// ServersLife returns how the server names a life.
func ServersLife(name string) string {
	_, server, _ := strings.Cut(name, " ")
	return server
}

// Reset forgets all that was read: in a new life of the server ids mean other messages, and what is known of
// transactions means nothing.
func (w *Window) Reset() {
	*w = Window{limiter: w.limiter, resets: w.resets + 1}
}

// Next makes the request for the next read. ranges says that it may be a single range of ids. known returns how many
// rows of a lane need no second look, above the mark and in all: a read returns them again, so its limit must leave
// room for them.
func (w *Window) Next(room Room, ranges bool, known func(lane int16, mark int64) (above, all int)) Request {
	r := Request{Stretch: w.limiter.stretch, Again: w.limiter.stretch, ranges: ranges, resets: w.resets}
	r.Xids, r.Bounds, r.Los, r.SegmentBounds = w.tracker.args()
	for n := range w.lanes {
		r.Epochs[n], r.Marks[n] = w.lanes[n].epoch, w.lanes[n].mark
	}
	again := w.setLimits(&r, room, known)
	w.trySingle(&r)
	w.setSizes(&r, room, again)
	return r
}

// Complete takes over the answer to a request.
func (w *Window) Complete(r Request, a Answer) Progress {
	if life := cmp.Or(w.life, w.loaded); life != "" && (a.Life != life || a.Snapshot.Seq < w.tracker.seq) {
		return Progress{More: true, Life: Changed}
	}
	w.life = a.Life
	p := w.move(&r, &a)
	w.tracker.observe(a.Snapshot)
	w.limiter.measure(&a)
	if !r.Single {
		w.limiter.adapt(p, a.Took)
	}
	return p
}

// Failed notes that a read came to nothing. Nothing moves.
func (w *Window) Failed(_ Request, timedOut bool) {
	if timedOut {
		w.dense = false
		w.limiter.timedOut()
	}
}

// Raise takes which transactions may have written to the outbox, found out after the last complete read and before
// the next request.
func (w *Window) Raise(writers map[uint32]bool) { w.tracker.raise(writers) }

// Lag returns how many ids the lowest bound of a transaction in progress lies behind what was read.
func (w *Window) Lag() int64 { return w.tracker.lag() }
