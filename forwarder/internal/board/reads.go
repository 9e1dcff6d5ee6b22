package board

import "time"

// Room is how much more a read may bring into memory. No Rows: only what is asked for by id.
type Room struct {
	Rows  int
	Bytes int64
}

// Rewind says that the mark of a lane goes back, if it is above To.
type Rewind struct {
	Term Term
	To   int64
}

// Asks is what the board wants of a read.
type Asks struct {
	Rewinds []Rewind // for the window, before it makes its request
	IDs     []int64  // rows to read by id, pending or dead
	Due     [Lanes]int64
	Room    Room
}

// Read is the complete answer to a read.
type Read struct {
	Terms   []TermRead      // the terms that were read and are still ours: rows of others are ignored
	ByID    map[int64]Found // what Asks.IDs found pending, or dead where the dead hold their keys; others are gone
	Ready   []*Row          // in order of lane and id
	Due     []*Row          // what fell due, if DueRead
	DueRead bool
}

// TermRead is a term that was read, and the mark of its lane after this read.
type TermRead struct {
	Term Term
	Mark int64
}

// Found is a row that was read by its id.
type Found struct {
	Row  *Row
	Dead bool
}

// Progress is what a read came to.
type Progress struct {
	Added   int  // rows that are new in memory
	More    bool // there is something to ask for at once
	ManyDue bool // there may be more that fell due
}

// ReadBegins forgets what was settled, and says what to read. One read at a time; RowsRead or ReadFailed ends it.
func (b *Board) ReadBegins(now time.Time) Asks { return Asks{} }

// RowsRead takes over a complete read.
func (b *Board) RowsRead(now time.Time, a Asks, r Read) Progress { return Progress{} }

// ReadFailed takes back what a read was asked for, so that the next one asks again.
func (b *Board) ReadFailed(now time.Time, a Asks) {}

// HasRoom says whether reading on is worth it: at least half of the room is free, and settling keeps up.
func (b *Board) HasRoom() bool { return true }

// Known counts the ids of a term that a read may return and that are in memory or parked: those above the mark
// (or a few more), and all.
func (b *Board) Known(t Term, mark int64) (above, all int) { return 0, 0 }

// Strays names rows that the sweep found pending below the mark. Those that nobody knows of are read by id.
func (b *Board) Strays(t Term, ids []int64) {}

// HeadsSeen compares the heads of a term with those that the database has: all of ids above from and up to to. It leaves
// alone what changed since began.
func (b *Board) HeadsSeen(now, began time.Time, t Term, from, to int64, heads []Head) {}
