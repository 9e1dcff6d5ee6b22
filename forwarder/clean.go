package forwarder

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/observe"
)

const (
	cleanBatch     = 1000    // rows per statement
	firstCleanSpan = 1 << 16 // ids per statement
	maxCleanSpan   = 1 << 40
	quickClean     = 20 * time.Millisecond
	// cleanAgain is how often skipped rows, whose retention was not over, are checked again.
	cleanAgain = time.Hour
	// keepDiscarded is how long discarded messages are kept if published ones are not.
	keepDiscarded = 24 * time.Hour
	// forgetAfter is how long a forwarder must be dead before its row is deleted.
	forgetAfter = time.Hour
)

// cleaner remembers how far published messages have been deleted. It continues where it stopped, because under a
// long-running transaction deleted rows stay in the index, and would be read again each time.
type cleaner struct {
	life  string    // the incarnation in which the ids below are valid
	low   int64     // nothing is left to delete up to here
	next  int64     // where to continue
	again time.Time // when to start over, at low
	span  int64
}

// clean follows the primary key upwards and deletes messages past the retention, until it reaches younger messages.
func (c *cleaner) clean(ctx context.Context, e *engine) error {
	var life string
	if e.step(func(_ time.Time, m *machine.Machine) { life, _ = m.Life() }); life == "" {
		return nil // nothing was read yet
	}
	if life != c.life {
		*c = cleaner{life: life}
	}
	inOrder := false // everything up to low was deleted
	if now := time.Now(); !now.Before(c.again) {
		c.again, c.next, c.span, inOrder = now.Add(cleanAgain), c.low, firstCleanSpan, true
	}
	retention := e.cfg.Retention
	if retention < 0 {
		retention = keepDiscarded
	}
	done := observe.CleanEnd{Table: e.cfg.tables.Outbox}
	started := time.Now()
	defer func() {
		done.Duration = time.Since(started)
		e.obs.cleaned(done)
	}()
	for {
		begun := time.Now()
		var reached, kept, deleted int64
		var end bool
		queryCtx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
		err := drive.Collect(queryCtx, e.db, func(rows drive.Rows) error {
			return rows.Scan(&reached, &end, &kept, &deleted)
		}, e.sql.clean, c.next, retention.Seconds(), int64(cleanBatch), topicsArg(e.cfg.Topics), c.span, "")
		cancel()
		took := time.Since(begun)
		if err != nil {
			c.span = max(c.span/2, cleanBatch)
			if ctx.Err() == nil {
				done.Err = err
			}
			return fmt.Errorf("delete published messages: %w", err)
		}
		done.Rows += deleted
		if inOrder {
			c.low, inOrder = min(kept, reached), kept >= reached
		}
		if c.next = max(c.next, reached); end {
			return nil
		}
		if took < quickClean {
			c.span = min(2*c.span, maxCleanSpan)
		} else if took > 4*quickClean {
			c.span = max(c.span/2, cleanBatch)
		}
		if !core.Pause(ctx, took) { // leave half of the time to others
			return nil
		}
	}
}

// forgetForwarders deletes the rows of forwarders that have been dead for long.
func (e *engine) forgetForwarders(ctx context.Context) error {
	return e.withJoinLock(ctx, func(ctx context.Context, q drive.Querier) error {
		_, err := q.Exec(ctx, e.sql.forget, forgetAfter.Seconds())
		return err
	})
}
