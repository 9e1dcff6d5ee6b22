package forwarder

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
)

// errorLog logs the first of a row of errors as an error and the others at debug, and when they end.
type errorLog struct {
	failing bool
	logger  watermill.LoggerAdapter
	what    string
}

func (l *errorLog) report(err error) {
	switch {
	case err == nil && l.failing:
		l.failing = false
		l.logger.Info(l.what+" works again", nil)
	case err == nil || errors.Is(err, context.Canceled):
	case l.failing:
		l.logger.Debug(l.what+" still fails", watermill.LogFields{"err": err.Error()})
	default:
		l.failing = true
		l.logger.Error(l.what+" fails; it is tried again until it works", err, nil)
	}
}
