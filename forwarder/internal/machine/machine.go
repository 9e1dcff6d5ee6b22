package machine

import (
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/window"
)

// Config is what decisions need to know.
type Config struct {
	Me           string // the forwarder's id in the database
	LeaseTTL     time.Duration
	PollInterval time.Duration
	CloseTimeout time.Duration // Drain waits as long for calls that timed out, as a stop does
}

// Machine is what the goroutines of a forwarder share. It is not safe for concurrent use. Events are methods, and now
// is not to go back between them.
type Machine struct {
	cfg    Config
	board  *board.Board
	window *window.Window

	lanes      [lanes.Count]Lane
	free       []lanes.Term // to be given back to the database
	share      int          // lanes that are ours to have, by the last count; -1 before the first
	leaseUntil time.Time    // no publish starts then or later
	stopping   bool

	starting int       // workers that have not taken a call yet
	tickAt   time.Time // when the timer looks
	reads    reads
	silent   bool      // a member may be dead
	quiet    time.Time // since when there is nothing to do; zero = there is
	failing  time.Time // since when no read works; zero = they do
	paused   map[string]Pause
	drains   []drain
	drainIDs int64

	effects Effects
}

// New makes a Machine around an empty board and a window that reads no lane.
func New(cfg Config, b *board.Board, w *window.Window) *Machine {
	return &Machine{cfg: cfg, board: b, window: w, share: -1, paused: map[string]Pause{}}
}

// Effects is what came of an event.
type Effects struct {
	Start   int            // so many workers are to be started; each begins with a first Turn
	Wake    Wake           // whom to signal
	Recall  []*board.Call  // take back what no handler has received yet, and answer Aborted
	Expired []*board.Call  // of those that are still Expiring end the contexts, find the verdict, tell TimedOut
	Drained []Drained      // answer these
	Reports []board.Report // for the log and observers, in order
}

// Wake is a set of goroutines.
type Wake uint8

const (
	WakeReader  Wake = 1 << iota // look whether to read
	WakeSettler                  // there are results
	WakeKeeper                   // lanes can be given back, or are to be taken anew
	WakeTimer                    // tick sooner
)

// Effects returns what came of the events since the last call. It is to be called after each.
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

// Stop begins the end: nothing is read or published any more, all lanes are handed back, and drains are answered.
func (m *Machine) Stop(now time.Time) {
	m.stopping = true
	m.board.Stop()
	m.handBack(m.All())
	m.endDrains(now, m.reads.begun+1, Drained{Closed: true})
}
