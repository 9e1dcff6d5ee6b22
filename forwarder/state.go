package forwarder

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
)

// State describes the forwarder's memory in one line for a log or a debugger: which lanes it reads, its lease, messages
// in memory and in flight, and topics that it does not publish to. Zero values are left out. For the tables use
// admin.Stats and admin.Doctor.
//
// State takes a few microseconds, without the database, and may be called at any time, also before and after Run.
func (f *Forwarder) State() string {
	var s machine.State
	f.engine.step(func(now time.Time, m *machine.Machine) { s = m.State(now) })
	return describe(s)
}

// describe names the number of lanes that are read, and the other lanes by number.
func describe(s machine.State) string {
	reading, others := 0, []string(nil)
	for _, l := range s.Lanes {
		switch l.State {
		case machine.Reading:
			reading++
		case machine.Taken: // its blocked keys are being loaded
			others = append(others, fmt.Sprintf("%d taken", l.Number))
		case machine.Handing: // another forwarder gets it once nothing of it is in flight
			others = append(others, fmt.Sprintf("%d releasing", l.Number))
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
	count("messages in memory: %d", s.Rows)
	count("%d bytes", int(s.Bytes))
	count("%d publishing", s.Young+s.Slow)
	count("%d hung", s.Hung)
	count("%d unsettled", s.Unsettled)
	count("%d waiting keys", s.Waiting)
	count("%d blocked keys", s.BlockedKeys)
	if len(s.Closed) > 0 {
		parts = append(parts, fmt.Sprintf("topics not published to %q", slices.Sorted(slices.Values(s.Closed))))
	}
	count("lag %d ids", int(s.Lag))
	count("%d waiting calls of Drain", s.Drains)
	since("quiet for %s", s.Health.Quiet)
	since("reads fail for %s", s.Health.Failing)
	since("reading for %s", s.Health.Asking)
	if s.Stopping {
		parts = append(parts, "stopping")
	}
	return strings.Join(parts, "; ")
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
