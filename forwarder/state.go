package forwarder

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
)

// State is a snapshot of a forwarder, for finding out why it does not do what you expect. For the tables use
// admin.Stats and admin.Doctor.
type State struct {
	Lanes    []Lane        // owned lanes, by number; nil before Run and after it
	Share    int           // how many of the 64 lanes it should own, as it last counted the forwarders; -1 before that
	Lease    time.Duration // how long publishes may start without another renewal; 0 = none may
	Stopping bool          // Run is ending

	Messages     int      // in memory, including those being published; slightly above Config.ReadAhead at most
	Bytes        int64    // of their payloads and metadata
	Publishing   int      // calls of the publisher in flight, without Hung
	Hung         int      // calls that exceeded Config.PublishTimeout and have not returned
	Unsettled    int      // results not yet written to the database
	WaitingKeys  int      // keys with a message on a topic that is not being published to
	BlockedKeys  int      // keys whose head waits for another attempt, or is dead
	ClosedTopics []string // topics not being published to, sorted: unavailable, paused by an operator, slow or hung

	Drains          int           // waiting calls of Drain
	LagIDs          int64         // ids that are read again until open transactions end that may precede them
	QuietFor        time.Duration // how long there has been nothing to do; 0 = there is work
	ReadsFailingFor time.Duration // how long no read has worked; 0 = reads work
	ReadingFor      time.Duration // how long a read has been in flight; 0 = none is
}

// Lane is a lane that a forwarder owns.
type Lane struct {
	Number int
	Epoch  int64 // counts its owners
	State  LaneState
	Mark   int64 // read up to this id; 0 unless it is being read
}

// LaneState is the state of a lane in its forwarder.
type LaneState string

const (
	LaneTaken     LaneState = "taken"     // its blocked keys are being loaded
	LaneReading   LaneState = "reading"   // its messages are published
	LaneReleasing LaneState = "releasing" // another forwarder gets it once nothing of it is in flight
)

// State returns a snapshot of the forwarder's memory, in a few microseconds and without the database. It may be called
// at any time, also before and after Run.
func (f *Forwarder) State() State {
	var s machine.State
	f.engine.step(func(now time.Time, m *machine.Machine) { s = m.State(now) })
	return stateOf(s)
}

// LogState logs State at info level, for a signal handler or a handler of your own.
func (f *Forwarder) LogState() {
	f.engine.logger.Info("state of the forwarder", watermill.LogFields{"state": f.State().String()})
}

func stateOf(s machine.State) State {
	is := State{
		Share: s.Share, Lease: s.Lease, Stopping: s.Stopping,
		Messages: s.Rows, Bytes: s.Bytes, Publishing: s.Young + s.Slow, Hung: s.Hung, Unsettled: s.Unsettled,
		WaitingKeys: s.Waiting, BlockedKeys: s.BlockedKeys, ClosedTopics: s.Closed,
		Drains: s.Drains, LagIDs: s.Lag,
		QuietFor: s.Mood.Quiet, ReadsFailingFor: s.Mood.Failing, ReadingFor: s.Mood.Asking,
	}
	slices.Sort(is.ClosedTopics)
	for _, l := range s.Lanes {
		states := [...]LaneState{machine.Taken: LaneTaken, machine.Reading: LaneReading, machine.Handing: LaneReleasing}
		is.Lanes = append(is.Lanes, Lane{Number: int(l.Number), Epoch: l.Epoch, State: states[l.State], Mark: l.Mark})
	}
	return is
}

// String returns one line without zero values: the number of lanes that are read, and the other lanes by number.
func (s State) String() string {
	reading, others := 0, []string(nil)
	for _, l := range s.Lanes {
		if l.State == LaneReading {
			reading++
		} else {
			others = append(others, fmt.Sprintf("%d %s", l.Number, l.State))
		}
	}
	lanes := fmt.Sprintf("%d of %d lanes read", reading, max(s.Share, 0))
	if len(others) > 0 {
		lanes += fmt.Sprintf(" (%s)", strings.Join(others, ", "))
	}
	parts := []string{lanes, "no lease"}
	if s.Lease > 0 {
		parts[1] = "lease for " + round(s.Lease).String()
	}
	count := func(what string, n int) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(what, n))
		}
	}
	since := func(what string, d time.Duration) {
		if d > 0 {
			parts = append(parts, fmt.Sprintf(what, round(d)))
		}
	}
	count("messages in memory: %d", s.Messages)
	count("%d bytes", int(s.Bytes))
	count("%d publishing", s.Publishing)
	count("%d hung", s.Hung)
	count("%d unsettled", s.Unsettled)
	count("%d waiting keys", s.WaitingKeys)
	count("%d blocked keys", s.BlockedKeys)
	if len(s.ClosedTopics) > 0 {
		parts = append(parts, fmt.Sprintf("topics not published to %q", s.ClosedTopics))
	}
	count("lag %d ids", int(s.LagIDs))
	count("%d waiting calls of Drain", s.Drains)
	since("quiet for %s", s.QuietFor)
	since("reads fail for %s", s.ReadsFailingFor)
	since("reading for %s", s.ReadingFor)
	if s.Stopping {
		parts = append(parts, "stopping")
	}
	return strings.Join(parts, "; ")
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
