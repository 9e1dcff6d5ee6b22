package coordinator

import (
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/cursor"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
)

// Config is the configuration that decisions need.
type Config struct {
	Me           string // the forwarder's id in the database
	LeaseTTL     time.Duration
	PollInterval time.Duration
	CloseTimeout time.Duration // Drain waits this long for calls that timed out, as a stop does
}

// Coordinator is the shared state of a forwarder's goroutines. It is not safe for concurrent use. Events are methods,
// and now must not go back between them.
type Coordinator struct {
	cfg        Config
	dispatcher *dispatch.Dispatcher
	cursors    *cursor.Cursors

	lanes      [lanes.Count]Lane
	free       []lanes.Assignment // to be released in the database
	share      int                // how many lanes we should have, by the last count; -1 before the first
	leaseUntil time.Time          // no publish starts then or later
	stopping   bool

	starting     int       // workers that have not taken a call yet
	tickAt       time.Time // when the timer fires
	reads        reads
	memberSilent bool      // a member may be dead
	quiet        time.Time // since when there has been nothing to do; zero = there is work
	failing      time.Time // since when no read has worked; zero = reads work
	paused       map[string]Pause
	drains       []drain
	drainIDs     int64

	effects Effects
}

// New makes a Coordinator around an empty dispatcher and cursors that read no lane.
func New(cfg Config, d *dispatch.Dispatcher, cursors *cursor.Cursors) *Coordinator {
	return &Coordinator{cfg: cfg, dispatcher: d, cursors: cursors, share: -1, paused: map[string]Pause{}}
}

// Effects are the consequences of an event.
type Effects struct {
	Start   int               // number of workers to start; each begins with a first Turn
	Wake    Wake              // goroutines to signal
	Recall  []*dispatch.Call  // take back messages that no handler has received yet, with the result Aborted
	Expired []*dispatch.Call  // for those still Expiring: end the contexts, find the verdict, call TimedOut
	Drained []Drained         // answer these
	Reports []dispatch.Report // for the log and observers, in order
}

// Wake is a set of goroutines.
type Wake uint8

const (
	WakeReader     Wake = 1 << iota // check whether to read
	WakeSettler                     // there are results
	WakeRebalancer                  // lanes can be released, or must be taken again
	WakeTimer                       // tick earlier
)

// Effects returns the consequences of the events since the last call. It must be called after each event.
func (c *Coordinator) Effects(now time.Time) Effects {
	e, f := c.effects, c.dispatcher.Effects()
	c.effects = Effects{}
	e.Recall, e.Expired, e.Reports = f.Recall, f.Expired, f.Reports
	if f.Publish > c.starting && now.Before(c.leaseUntil) {
		e.Start, c.starting = f.Publish-c.starting, f.Publish
	}
	if f.Settle {
		e.Wake |= WakeSettler
	}
	tick, read := c.dispatcher.NextTimes()
	if f.Read || c.readsSooner(read) {
		c.reads.wanted = c.reads.wanted || f.Read
		e.Wake |= WakeReader
	}
	if !tick.IsZero() && tick.Before(c.tickAt) {
		c.tickAt = tick
		e.Wake |= WakeTimer
	}
	if len(f.Free) > 0 {
		c.free = append(c.free, f.Free...)
		e.Wake |= WakeRebalancer
	}
	if len(f.Reports) > 0 {
		c.rememberPauses(now, f.Reports)
	}
	return e
}

// Stop begins the end: nothing more is read or published, all lanes are released, and drains are answered.
func (c *Coordinator) Stop(now time.Time) {
	c.stopping = true
	c.dispatcher.Stop()
	c.release(c.Assignments())
	c.endDrains(now, Drained{Closed: true})
}
