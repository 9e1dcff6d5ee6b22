package inbound

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/keyed"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// Handlers count as hung when for hungAfter messages waited and no handler returned.
const hungAfter = 5 * time.Minute

// Pause records how long a source has been paused. The goroutine that reads the source owns it.
type Pause struct {
	Since  time.Time // zero = it is being read
	Active time.Time // when a delivery last began or ended; zero = never
}

// Stalled reports whether messages wait for handlers that hang. Then the source is paused, even if it has reached no
// limit, so that observers, Doctor and the log show it.
func Stalled[T any](p Pause, w *keyed.Window[T], running int) bool {
	return running > 0 && w.Undone() > running && time.Since(p.Active) >= hungAfter
}

// Reason returns why the source is paused. full means that it is because of MaxAhead, not MaxBytes.
func Reason[T any](p Pause, w *keyed.Window[T], full bool) meter.PauseReason {
	idle := p.Since
	if p.Active.After(idle) {
		idle = p.Active
	}
	switch oldest := w.Oldest(); {
	case oldest != nil && oldest.Failures > 0:
		return meter.PausedByBlockedKey
	case !p.Since.IsZero() && time.Since(idle) >= hungAfter:
		return meter.PausedByHungHandlers
	case !full:
		return meter.PausedByBytes
	}
	return meter.PausedByHandlers
}

// ErrHung is the error in the log line of a source whose handlers hang.
//
// Cause: handlers do not return.
// Cure: wait with the message's context.
var ErrHung = errors.New("handlers hang")

// Cause: a handler nacked.
// Cure: add it, or middleware.Stack.
var errNackedUnknown = errors.New("the error is unknown, because the handler has no middleware.ErrorHandler")

// lastFailure returns why a source waits for a message.
func lastFailure(failures int, cause error) error {
	if cause == nil {
		cause = errNackedUnknown
	}
	return fmt.Errorf("%d failures in a row, the last: %w", failures, cause)
}

// Describe fills in a source's state from its window; cause returns the last error of a record. Once a minute it logs
// that the source is paused because a message keeps failing or handlers never return. position is the name of a
// position in the log.
func Describe[T any](
	state meter.PartitionState, w *keyed.Window[T], cause func(T) error, running int, p Pause, full bool,
	position string,
	lines *trouble.RateLimit, logger watermill.LoggerAdapter,
) meter.PartitionState {
	state.Ahead, state.Pending, state.Running = w.Records(), w.Undone(), running
	failing, since := w.Failing()
	if state.BlockedKeys = failing; failing > 0 {
		state.OldestBlocked = time.Since(since)
	}
	if p.Since.IsZero() {
		return state
	}
	state.Paused, state.PausedFor = Reason(p, w, full), time.Since(p.Since)
	blocked, hung := state.Paused == meter.PausedByBlockedKey, state.Paused == meter.PausedByHungHandlers
	switch {
	case !blocked && !hung, !lines.Allow(fmt.Sprint("paused ", state.Partition)):
	case blocked:
		oldest := w.Oldest()
		// Cure: see outboxctl inbox list --state failing.
		logger.Error("reading is paused: MaxAhead messages or MaxBytes are read beyond a message that keeps failing: "+
			"fix its handler, or let it declare the message poison", lastFailure(oldest.Failures, cause(oldest.Value)),
			watermill.LogFields{position: oldest.Pos, "failing_since": since, "waiting": w.Undone()})
	case hung:
		// Cause: handlers wait without a timeout.
		// Cure: a goroutine dump shows where; wait with the message's context.
		logger.Error("messages wait, and no handler has returned for five minutes: "+
			"bound what handlers wait for, and restart the process", ErrHung, watermill.LogFields{
			"handlers": running, "paused_since": p.Since, "waiting": w.Undone(),
		})
	}
	return state
}
