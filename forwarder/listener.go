package forwarder

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// notified handles the notification of a commit.
func (e *engine) notified(n core.Notification) {
	if n.Outbox {
		e.wake()
	}
}

// listen is the goroutine that receives notifications of commits in other processes. Those that it misses while the
// connection is down are found by polling.
func (e *engine) listen(ctx context.Context) {
	// Cause: its connection broke, or the pool is full.
	// Cure: they are found by polling.
	report := trouble.RetryLog{Logger: e.logger, What: "listening for commits of other processes"}
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 100*time.Millisecond, 30*time.Second
	for {
		err := e.db.Listen(ctx, func(n core.Notification) {
			report.Report(nil)
			retry.Reset()
			e.notified(n)
		})
		if errors.Is(err, drive.ErrNoListen) {
			e.logger.Debug("no LISTEN here: polling for messages of other processes", watermill.LogFields{"err": err.Error()})
			return
		}
		if ctx.Err() != nil {
			return
		}
		report.Report(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry.NextBackOff()):
		}
	}
}
