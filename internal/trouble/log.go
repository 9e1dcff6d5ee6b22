// Package trouble logs what is retried: that it fails, now and then while it goes on failing, and that it works
// again.
package trouble

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// interval is how often an error is logged as one while it goes on.
const interval = time.Minute

// Log is that of one activity, whose name begins a sentence: "claiming messages". One goroutine uses it.
type Log struct {
	Logger watermill.LoggerAdapter
	What   string

	last time.Time // zero = it works
}

// Tell takes how a try ended. That it was cancelled says nothing.
func (l *Log) Tell(err error) {
	switch {
	case errors.Is(err, context.Canceled):
	case err == nil && !l.last.IsZero():
		l.last = time.Time{}
		l.Logger.Info(l.What+" works again", nil)
	case err == nil:
	case time.Since(l.last) >= interval:
		l.last = time.Now()
		l.Logger.Error(l.What+" failed: retrying until it works", err, nil)
	default:
		l.Logger.Debug(l.What+" still fails", watermill.LogFields{"err": err.Error()})
	}
}
