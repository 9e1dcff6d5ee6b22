package forwarder

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

const (
	cleanBatch     = 1000    // rows per statement
	firstCleanSpan = 1 << 16 // ids per statement
	maxCleanSpan   = 1 << 40
	quickClean     = 20 * time.Millisecond
	// recleanInterval is how often skipped rows, whose retention was not over, are checked again.
	recleanInterval = time.Hour
	// keepDiscarded is how long discarded messages are kept if published ones are not.
	keepDiscarded = 24 * time.Hour
	// forgetAfter is how long a forwarder must be dead before its row is deleted.
	forgetAfter = time.Hour
)

// clean is the goroutine that deletes what is past its retention, which may take hours.
func (e *engine) clean(ctx context.Context) {
	// Cause: the database.
	// Cure: the table grows.
	deleting := trouble.RetryLog{Logger: e.logger, What: "deleting published messages"}
	// Cause: the database.
	// Cure: the inbox grows; without the grant, set InboxRetention to -1.
	inbox := trouble.RetryLog{Logger: e.logger, What: "deleting old rows of the inbox"}
	// Cause: the database.
	// Cure: the table grows.
	keys := trouble.RetryLog{Logger: e.logger, What: "deleting expired idempotency keys"}
	// Cause: the database.
	// Cure: nothing else depends on it.
	forget := trouble.RetryLog{Logger: e.logger, What: "deleting rows of stopped forwarders"}
	var published cleaner
	parts := []func(){
		func() { deleting.Report(published.clean(ctx, e)) },
		func() { keys.Report(e.cleanKeys(ctx)) },
		func() { forget.Report(e.forgetForwarders(ctx)) },
	}
	if e.cfg.InboxRetention > 0 {
		parts = append(parts, func() { inbox.Report(e.cleanInbox(ctx)) })
	}
	for _, d := range e.deadCleaners() {
		parts = append(parts, func() { d.Turn(ctx, deadShare) })
	}
	round := func() {
		if !e.firstLane() {
			return
		}
		// In random order, because a Group with more databases than slots cuts long rounds off.
		rand.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		for _, part := range parts {
			if ctx.Err() == nil {
				part()
			}
		}
	}
	tick := time.NewTicker(e.cfg.CleanInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			round()
		case done := <-e.cleanUpNow:
			e.unread.check(ctx, e) // the maintainer has no turn before an idle database is asleep again
			round()
			close(done)
		}
	}
}

// cleaner remembers how far published messages have been deleted. It continues where it stopped, because under a
// long-running transaction deleted rows stay in the index, and would be read again each time.
type cleaner struct {
	incarnation string    // the incarnation in which the ids below are valid
	low         int64     // nothing is left to delete up to here, except in transactions that were open
	open        int64     // below the messages of these transactions, when it last started over
	next        int64     // where to continue
	again       time.Time // when to start over, at low
	span        int64
}

// clean follows the primary key upwards and deletes messages past the retention, until it reaches younger messages.
func (c *cleaner) clean(ctx context.Context, e *engine) error {
	var incarnation string
	var open int64
	e.step(func(_ time.Time, c *coordinator.Coordinator) { incarnation, open = c.BelowOpen() })
	if incarnation == "" {
		return nil // nothing was read yet
	}
	if incarnation != c.incarnation {
		*c = cleaner{incarnation: incarnation}
	}
	inOrder := false // everything up to low was deleted
	if now := time.Now(); !now.Before(c.again) {
		c.again, c.next, c.span, inOrder = now.Add(recleanInterval), c.low, firstCleanSpan, true
		if open > c.open { // the oldest of them has ended
			c.next, c.open = min(c.low, c.open), open
		}
	}
	retention := e.cfg.Retention
	if retention < 0 {
		retention = keepDiscarded
	}
	done := meter.CleanEnd{Table: e.cfg.tables.Outbox}
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

// deadShare is how long dead messages of one table are discarded before other work has its turn.
const deadShare = 5 * time.Second

// deadCleaners discards the messages that have been dead for longer than DeadRetention.
func (e *engine) deadCleaners() []*clean.Dead {
	all := []*clean.Dead{{
		DB: e.db, Logger: e.logger, Store: sqltext.Outbox, In: "outbox", Topics: e.cfg.Topics,
		Retention: e.cfg.DeadRetention, Timeout: e.cfg.QueryTimeout,
	}}
	if e.cfg.InboxRetention > 0 {
		all = append(all, &clean.Dead{
			DB: e.db, Logger: e.logger, Store: sqltext.Inbox, In: "inbox",
			Retention: e.cfg.DeadRetention, Timeout: e.cfg.QueryTimeout,
		})
	}
	return all
}

// cleanInbox deletes old rows of the inbox. The forwarder does this, so that users need no job for it.
func (e *engine) cleanInbox(ctx context.Context) error {
	begun := time.Now()
	rows, err := clean.Inbox(ctx, e.db, e.cfg.InboxRetention, "", e.cfg.QueryTimeout, nil)
	if ctx.Err() != nil {
		err = nil // interrupted, not failed
	}
	e.obs.cleaned(meter.CleanEnd{Table: e.cfg.tables.Inbox, Rows: rows, Duration: time.Since(begun), Err: err})
	return err
}

// cleanKeys deletes expired rows of package idempotency. Each row has its expiry time.
func (e *engine) cleanKeys(ctx context.Context) error {
	begun := time.Now()
	rows, err := clean.Keys(ctx, e.db, "", e.cfg.QueryTimeout, nil)
	if ctx.Err() != nil {
		err = nil // interrupted, not failed
	}
	e.obs.cleaned(meter.CleanEnd{Table: e.cfg.tables.Idempotency, Rows: rows, Duration: time.Since(begun), Err: err})
	return err
}

const (
	unreadInterval = time.Minute      // between two checks for topics without a forwarder
	unreadAge      = 30 * time.Second // of a message before it counts
	unreadPerLane  = 200              // messages
)

// Cause: it is misspelt, missing in Config.Topics, or its forwarder has stopped.
// Cure: add it, or discard the messages.
var errUnread = errors.New("no running forwarder reads this topic: check its spelling in Config.Topics, " +
	"and that its forwarder runs")

// unreadTopics reports topics without a forwarder, such as one that is misspelt in Config.Topics. The maintainer checks
// for them, and the cleaner in databases of a Group that are idle.
type unreadTopics struct {
	mu  sync.Mutex
	at  time.Time // of the last check
	log trouble.RetryLog
}

// check logs, at most once a minute, topics that no forwarder reads. If a forwarder reads all topics, there are none.
func (u *unreadTopics) check(ctx context.Context, e *engine) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(e.cfg.Topics) > 0 && time.Since(u.at) >= unreadInterval && e.firstLane() {
		u.at = time.Now()
		u.log.Report(e.reportUnread(ctx))
	}
}

func (e *engine) reportUnread(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	err := drive.Collect(ctx, e.db, func(rows drive.Rows) error {
		var topic string
		var messages int64
		var oldest float64
		if err := rows.Scan(&topic, &messages, &oldest); err != nil {
			return err
		}
		// Cause: it is misspelt, missing in Config.Topics, or its forwarder has stopped.
		// Cure: add it, or discard the messages.
		e.logger.Error("no forwarder publishes this topic: its messages stay pending", errUnread, watermill.LogFields{
			"topic": topic, "messages_at_least": messages,
			"oldest":     time.Duration(oldest * float64(time.Second)).Round(time.Second).String(),
			"own_topics": e.cfg.Topics,
		})
		return nil
	}, e.sql.unreadTopics, int64(unreadPerLane), unreadAge.Seconds())
	if err != nil {
		return fmt.Errorf("check for topics without a forwarder: %w", err)
	}
	return nil
}
