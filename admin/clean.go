package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// CleanConfig configures Clean, for jobs that clean in place of forwarders and dispatchers.
type CleanConfig struct {
	// OutboxRetention, InboxRetention and QueueRetention are how long done rows of each table are kept; default 0,
	// which deletes nothing.
	OutboxRetention, InboxRetention, QueueRetention time.Duration
	// Idempotency deletes expired HTTP requests of package idempotency; default off.
	Idempotency bool
	// At is the time from which the retentions are counted back; default now. Set it to CleanResult.At of a dry run to
	// delete only the rows that were counted.
	At time.Time
	// Reason is stored in the audit log.
	Reason string
	// DryRun only counts, up to 10,000 rows of each table; default off.
	DryRun bool
}

// CleanResult is the number of deleted rows, or in a dry run of rows to delete.
type CleanResult struct {
	At     time.Time `json:"at"` // the time from which retentions count back
	Outbox Count     `json:"outbox"`
	Inbox  Count     `json:"inbox"`
	Queue  Count     `json:"queue"`
	// Idempotency is the number of HTTP requests, deleted with their responses.
	Idempotency Count `json:"idempotency"`
}

const (
	cleanRows = 1000           // rows deleted by one statement
	cleanSpan = int64(1 << 16) // ids that one statement covers
)

// Clean deletes messages that were done or discarded longer ago than the retention, in short statements with pauses. It
// never deletes dead messages, or pending messages of the outbox and the queue. From the inbox it also deletes messages
// that last failed longer ago than the retention and were not handled since; a redelivery counts their attempts from
// zero. Clean returns the number of deleted rows, even with an error: ErrNoActor, an error that names an invalid field,
// or an error of the database or the context.
func (a *Admin) Clean(ctx context.Context, cfg CleanConfig) (r CleanResult, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("clean: %w", err)
		}
	}()
	for field, d := range map[string]time.Duration{
		"OutboxRetention": cfg.OutboxRetention, "InboxRetention": cfg.InboxRetention, "QueueRetention": cfg.QueueRetention,
	} {
		if d < 0 {
			return r, invalid("admin: CleanConfig.%s is %s: use a positive duration, or 0 to leave the table "+
				"alone", field, d)
		}
	}
	now, err := a.now(ctx)
	switch {
	case err != nil:
		return r, err
	case cfg.At.IsZero():
		cfg.At = now
	case cfg.At.After(now):
		return r, invalid("admin: CleanConfig.At is %s, but the database's clock shows %s: a future time would delete "+
			"messages that must be kept", stamp(cfg.At), stamp(now))
	}
	act := Action{Reason: cfg.Reason}
	if err := a.recordable(cfg.Reason); err != nil {
		return r, err
	}
	if cfg.DryRun {
		return a.countClean(ctx, cfg)
	}
	r.At = cfg.At
	for _, t := range []struct {
		in        Table
		states    []State
		retention time.Duration
		do        deletion
		n         *int64
		wanted    bool
	}{
		{Outbox, []State{Done, Discarded}, cfg.OutboxRetention, a.cleanOutbox, &r.Outbox.N, cfg.OutboxRetention > 0},
		{Inbox, []State{Done, Discarded, Failing}, cfg.InboxRetention, a.cleanInbox, &r.Inbox.N, cfg.InboxRetention > 0},
		{Queue, []State{Done}, cfg.QueueRetention, a.cleanQueue, &r.Queue.N, cfg.QueueRetention > 0},
		{idempotency, nil, 0, a.cleanKeys, &r.Idempotency.N, cfg.Idempotency},
	} {
		if !t.wanted {
			continue
		}
		act.Filter = Filter{In: t.in, States: t.states}
		if *t.n, err = a.cleanTable(ctx, act, cfg.At, t.retention, t.do); err != nil {
			return r, err
		}
	}
	return r, nil
}

// deletion deletes old rows of one table and returns their number, even with an error. It passes the number of each
// batch to deleted.
type deletion func(
	ctx context.Context, retention time.Duration, from string, deleted func(rows int64) error,
) (rows int64, err error)

// cleanTable cleans one table, with its own entry in the audit log, to which each batch is added.
func (a *Admin) cleanTable(
	ctx context.Context, act Action, at time.Time, retention time.Duration, do deletion,
) (n int64, err error) {
	act.Filter.Before = at.Add(-retention)
	audit, err := a.begin(ctx, "clean", act)
	if err != nil {
		return 0, err
	}
	n, err = do(ctx, retention, stamp(at), func(rows int64) error {
		if rows == 0 {
			return nil
		}
		return a.exec(context.WithoutCancel(ctx), sqltext.CountClean, audit, rows)
	})
	return n, a.end(ctx, audit, err)
}

func (a *Admin) countClean(ctx context.Context, cfg CleanConfig) (r CleanResult, err error) {
	r.At = cfg.At
	for _, t := range []struct {
		retention time.Duration
		statement string
		c         *Count
	}{
		{cfg.OutboxRetention, sqltext.CountOldOutbox, &r.Outbox}, {cfg.InboxRetention, sqltext.CountOldInbox, &r.Inbox},
		{cfg.QueueRetention, sqltext.CountOldQueue, &r.Queue},
	} {
		if t.retention > 0 {
			scan := func(rows drive.Rows) error { return rows.Scan(&t.c.N, &t.c.More) }
			if err = a.fetch(ctx, scan, t.statement, t.retention.Seconds(), int64(dryCount), stamp(cfg.At)); err != nil {
				return r, err
			}
		}
	}
	if cfg.Idempotency {
		scan := func(rows drive.Rows) error { return rows.Scan(&r.Idempotency.N, &r.Idempotency.More) }
		err = a.fetch(ctx, scan, sqltext.CountExpiredKeys, int64(dryCount), stamp(cfg.At))
	}
	return r, err
}

func (a *Admin) cleanOutbox(
	ctx context.Context, retention time.Duration, from string, deleted func(rows int64) error,
) (rows int64, err error) {
	first, err := a.number(ctx, sqltext.FirstOutboxID)
	for at, end := first, false; err == nil && !end; {
		begun := time.Now()
		var kept, n int64
		err = a.fetch(ctx, func(r drive.Rows) error { return r.Scan(&at, &end, &kept, &n) },
			sqltext.CleanPublished, at-1, retention.Seconds(), int64(cleanRows), []string{}, cleanSpan, from)
		if err != nil {
			return rows, err
		}
		at++
		rows += n
		if err = deleted(n); err == nil && !end {
			select {
			case <-ctx.Done():
				err = ctx.Err()
			case <-time.After(time.Since(begun)):
			}
		}
	}
	return rows, err
}

func (a *Admin) cleanInbox(
	ctx context.Context, retention time.Duration, from string, deleted func(rows int64) error,
) (int64, error) {
	return clean.Inbox(ctx, a.db, retention, from, a.cleanTimeout(), deleted)
}

func (a *Admin) cleanKeys(
	ctx context.Context, _ time.Duration, by string, deleted func(rows int64) error,
) (int64, error) {
	return clean.Keys(ctx, a.db, by, a.cleanTimeout(), deleted)
}

func (a *Admin) cleanTimeout() time.Duration {
	if a.cfg.QueryTimeout < 0 {
		return 24 * time.Hour
	}
	return a.cfg.QueryTimeout
}

func (a *Admin) cleanQueue(
	ctx context.Context, retention time.Duration, from string, deleted func(rows int64) error,
) (int64, error) {
	return clean.Batches(ctx, func() (int64, error) {
		queryCtx, cancel := a.bound(ctx)
		defer cancel()
		n, err := a.db.Exec(queryCtx, a.db.Render(sqltext.CleanQueue), retention.Seconds(), int64(clean.Batch), from)
		return n, explain(err)
	}, deleted)
}
