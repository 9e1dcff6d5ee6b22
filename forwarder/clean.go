package forwarder

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/observe"
)

const (
	cleanBatch     = 1000    // rows per statement
	firstCleanSpan = 1 << 16 // ids per statement
	maxCleanSpan   = 1 << 40
	quickClean     = 20 * time.Millisecond
	// cleanAgain is how often what was passed by is looked at again: it was not published long enough then.
	cleanAgain = time.Hour
	// forgetAfter is for how long a forwarder must be dead to be forgotten.
	forgetAfter = time.Hour
)

// cleaner is how far the deleting of published messages has come. It goes on where it stopped, because under a
// transaction that is open for long what it deleted stays in the index, and would be walked each time.
type cleaner struct {
	life  string    // in which the ids below mean something
	low   int64     // there is nothing to delete up to here, whatever happens
	next  int64     // where to go on
	again time.Time // when to start over, at low
	span  int64
}

// clean walks the primary key upwards, deleting messages past the retention, until it comes to messages that are
// younger.
func (c *cleaner) clean(ctx context.Context, e *engine) error {
	var life string
	if e.step(func(_ time.Time, m *machine.Machine) { life, _ = m.Life() }); life == "" {
		return nil // nothing was read yet
	}
	if life != c.life {
		*c = cleaner{life: life}
	}
	rising := false // all up to low was deleted
	if now := time.Now(); !now.Before(c.again) {
		c.again, c.next, c.span, rising = now.Add(cleanAgain), c.low, firstCleanSpan, true
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
		}, e.sql.clean, c.next, e.cfg.Retention.Seconds(), int64(cleanBatch), topicsArg(e.cfg.Topics), c.span, "")
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
		if rising {
			c.low, rising = min(kept, reached), kept >= reached
		}
		if c.next = max(c.next, reached); end {
			return nil
		}
		if took < quickClean {
			c.span = min(2*c.span, maxCleanSpan)
		} else if took > 4*quickClean {
			c.span = max(c.span/2, cleanBatch)
		}
		if !sleep(ctx, took) { // leave half of the time to others
			return nil
		}
	}
}

// forgetForwarders deletes the traces of forwarders that are gone for long.
func (e *engine) forgetForwarders(ctx context.Context) error {
	return e.alone(ctx, func(ctx context.Context, q drive.Querier) error {
		_, err := q.Exec(ctx, e.sql.forget, forgetAfter.Seconds())
		return err
	})
}
