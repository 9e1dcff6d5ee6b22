// Package trouble logs activities that are retried: their failures, at intervals, and their recovery.
package trouble

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// interval is the time between error lines of a lasting failure.
const interval = time.Minute

// RetryLog is the log of one activity, whose name begins its lines: "claiming messages". It is not safe for concurrent
// use.
type RetryLog struct {
	Logger watermill.LoggerAdapter
	What   string

	last  time.Time // zero = it works
	state string    // SQLSTATE of the last error line
}

// Report records the result of an attempt, and ignores cancellation. An error with a cure that differs from the last
// one is logged immediately: a server may restart with settings that break everything.
func (l *RetryLog) Report(err error) {
	curable := text.HasCure(err) && text.SQLState(err) != l.state
	switch {
	case errors.Is(err, context.Canceled):
	case err == nil && !l.last.IsZero():
		l.last, l.state = time.Time{}, ""
		l.Logger.Info(l.What+" works again", nil)
	case err == nil:
	case curable || time.Since(l.last) >= interval:
		l.last, l.state = time.Now(), text.SQLState(err)
		l.Logger.Error(l.What+" failed: retrying until it works", text.Explain(err), nil)
	default:
		l.Logger.Debug(l.What+" still fails", watermill.LogFields{"err": err.Error()})
	}
}
