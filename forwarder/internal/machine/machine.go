package machine

import (
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/window"
)

// Config is the configuration that decisions need.
type Config struct {
	Me           string // the forwarder's id in the database
	LeaseTTL     time.Duration
	PollInterval time.Duration
	CloseTimeout time.Duration // Drain waits this long for calls that timed out, as a stop does
}

// Machine is the shared state of a forwarder's goroutines. It is not safe for concurrent use. Events are methods, and
// now must not go back between them.
type Machine struct {
	cfg    Config
	board  *board.Board
	window *window.Window

	lanes      [lanes.Count]Lane
	free       []lanes.Term // to be released in the database
	share      int          // how many lanes we should have, by the last count; -1 before the first
	leaseUntil time.Time    // no publish starts then or later
	stopping   bool

	starting int       // workers that have not taken a call yet
	tickAt   time.Time // when the timer fires
	reads    reads
	silent   bool      // a member may be dead
	quiet    time.Time // since when there has been nothing to do; zero = there is work
	failing  time.Time // since when no read has worked; zero = reads work
	paused   map[string]Pause
	drains   []drain
	drainIDs int64

	effects Effects
}

// New makes a Machine around an empty board and a window that reads no lane.
func New(cfg Config, b *board.Board, w *window.Window) *Machine {
	return &Machine{cfg: cfg, board: b, window: w, share: -1, paused: map[string]Pause{}}
}

// Effects are the consequences of an event.
type Effects struct {
	Start   int            // number of workers to start; each begins with a first Turn
	Wake    Wake           // goroutines to signal
	Recall  []*board.Call  // take back messages that no handler has received yet, with the result Aborted
	Expired []*board.Call  // for those still Expiring: end the contexts, find the verdict, call TimedOut
	Drained []Drained      // answer these
	Reports []board.Report // for the log and observers, in order
}

// Wake is a set of goroutines.
type Wake uint8

const (
	WakeReader  Wake = 1 << iota // check whether to read
	WakeSettler                  // there are results
	WakeKeeper                   // lanes can be released, or must be taken again
	WakeTimer                    // tick earlier
)

// Effects returns the consequences of the events since the last call. It must be called after each event.
func (m *Machine) Effects(now time.Time) Effects {
	e, f := m.effects, m.board.Effects()
	m.effects = Effects{}
	e.Recall, e.Expired, e.Reports = f.Recall, f.Expired, f.Reports
	if f.Publish > m.starting && now.Before(m.leaseUntil) {
		e.Start, m.starting = f.Publish-m.starting, f.Publish
	}
	if f.Settle {
		e.Wake |= WakeSettler
	}
	tick, read := m.board.Due()
	if f.Read || m.readsSooner(read) {
		m.reads.asked = m.reads.asked || f.Read
		e.Wake |= WakeReader
	}
	if !tick.IsZero() && tick.Before(m.tickAt) {
		m.tickAt = tick
		e.Wake |= WakeTimer
	}
	if len(f.Free) > 0 {
		m.free = append(m.free, f.Free...)
		e.Wake |= WakeKeeper
	}
	if len(f.Reports) > 0 {
		m.notePauses(now, f.Reports)
	}
	return e
}

// Stop begins the end: nothing more is read or published, all lanes are handed back, and drains are answered.
func (m *Machine) Stop(now time.Time) {
	m.stopping = true
	m.board.Stop()
	m.handBack(m.All())
	m.endDrains(now, m.reads.begun+1, Drained{Closed: true})
}
