package clean

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// DeadInterval is how often dead messages past their retention are looked for. Each time some are found is an entry in
// the audit log, which nothing deletes.
const DeadInterval = time.Hour

// Dead is a table whose dead messages are discarded after a retention.
type Dead struct {
	Store     *sqltext.Store
	In        string   // name of the table for the audit log: outbox, inbox or queue
	Topics    []string // empty = all
	Retention time.Duration
	Timeout   time.Duration // of each statement
}

// Discard discards messages that have been dead for longer than the retention, by the statement of admin.Discard and
// with an entry in the audit log. Messages that another session has locked wait for the next time.
func (d Dead) Discard(ctx context.Context, db *core.DB, q drive.Querier, logger watermill.LoggerAdapter) error {
	var entry, discarded int64
	reason := "dead for longer than " + d.Retention.String()
	for more := true; more; {
		begun := time.Now()
		owners, names, versions, err := d.find(ctx, db, q)
		if err == nil && len(names) > 0 && entry == 0 {
			entry, err = d.begin(ctx, db, q, reason)
		}
		var n int64
		if err == nil && len(names) > 0 {
			var blocked []byte
			var drawn *int64
			err = d.query(ctx, db, q, func(rows drive.Rows) error { return rows.Scan(&n, &blocked, &drawn) },
				d.Store.Act["discard"], owners, names, []string{"dead"}, entry,
				"discarded by "+sqltext.DeadRetention+": "+reason, versions)
		}
		if err != nil {
			return fmt.Errorf("discard dead messages of the %s: %w", d.In, explainDead(err))
		}
		discarded += n
		more = len(names) == Batch && n > 0 && core.Pause(ctx, time.Since(begun))
	}
	if entry == 0 {
		return nil
	}
	db.Wake()
	logger.Info("discarded dead messages past DeadRetention", watermill.LogFields{
		"in": d.In, "messages": discarded, "retention": d.Retention.String(), "audit_id": entry,
	})
	return explainDead(d.query(ctx, db, q, nil, sqltext.EndAct, entry, ""))
}

func (d Dead) find(ctx context.Context, db *core.DB, q drive.Querier) (owners, names []string, versions []int64,
	err error) {
	topics := d.Topics
	if topics == nil {
		topics = []string{}
	}
	err = d.query(ctx, db, q, func(rows drive.Rows) error {
		var owner, name string
		var version int64
		err := rows.Scan(&owner, &name, &version)
		owners, names, versions = append(owners, owner), append(names, name), append(versions, version)
		return err
	}, d.Store.OldDead, d.Retention.Seconds(), int64(Batch), topics)
	return owners, names, versions, err
}

func (d Dead) begin(ctx context.Context, db *core.DB, q drive.Querier, reason string) (entry int64, err error) {
	filter, err := json.Marshal(map[string]any{"in": d.In, "states": []string{"dead"}})
	if err != nil {
		return 0, err
	}
	err = d.query(ctx, db, q, func(rows drive.Rows) error { return rows.Scan(&entry) },
		sqltext.BeginAct, sqltext.DeadRetention, "discard", reason, string(filter))
	return entry, err
}

func (d Dead) query(
	ctx context.Context, db *core.DB, q drive.Querier, scan func(drive.Rows) error, statement string, args ...any,
) error {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	return drive.Collect(ctx, q, scan, db.Render(statement), args...)
}

func explainDead(err error) error {
	if text.SQLState(err) == text.InsufficientPrivilege {
		return fmt.Errorf("%w (grant the role what schema.Roles grants an admin, or leave DeadRetention at 0)", err)
	}
	return text.Explain(err)
}
