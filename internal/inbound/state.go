package inbound

import (
	"errors"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/keyed"
	"github.com/millrace-go/watermill-outbox/observe"
)

// Describe fills in what a window says of its source. Paused is since when nothing is read; zero = it is read.
func Describe[T any](
	state observe.PartitionState, w *keyed.Window[T], running int, paused time.Time, reason func() observe.PauseReason,
) observe.PartitionState {
	state.Ahead, state.Pending, state.Running = w.Records(), w.Undone(), running
	failing, since := w.Failing()
	if state.BlockedKeys = failing; failing > 0 {
		state.OldestBlocked = time.Since(since)
	}
	if !paused.IsZero() {
		state.Paused, state.PausedFor = reason(), time.Since(paused)
	}
	return state
}

// hungAfter is how long no handler returns, while nothing is read, until that is a fault and not slowness.
const hungAfter = 5 * time.Minute

// ErrHung is what the line of a source whose handlers hang says.
//
// Cause: handlers take all places of a subscription and do not return.
// Cure: bound what they wait for by the message's context.
var ErrHung = errors.New("handlers hang")

// Hung says whether nothing has been read for long, and no handler has returned. A zero time is that of what never was.
func Hung(paused, returned, now time.Time) bool {
	if paused.IsZero() {
		return false
	}
	if returned.After(paused) {
		paused = returned
	}
	return now.Sub(paused) >= hungAfter
}
