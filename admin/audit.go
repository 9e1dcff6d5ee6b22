package admin

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// AuditEntry is an act in the audit log. It is written before the first message is changed, and its counts are updated
// with each batch.
type AuditEntry struct {
	ID    int64     `json:"id"`
	At    time.Time `json:"at"`
	Role  string    `json:"role"`  // the database role that was logged in
	Actor string    `json:"actor"` // the name that the caller gave
	// requeue, redrive, discard, skip, replay, retry_now, pause, resume, clean, reconcile, partitions; of
	// outboxctl: import, export
	Action string `json:"action"`
	Reason string `json:"reason,omitempty"`
	// Filter is the act's filter. Clean writes an entry for each table, in which Before is the cutoff: it deletes rows
	// that were done before then.
	Filter Filter `json:"filter"`
	Result Result `json:"result"`
	// EndedAt is when the act ended; zero while it runs, and if its process or the database died before the end.
	EndedAt time.Time `json:"ended_at,omitzero"`
	// Outcome is the interruption or error that ended the act early, or the partitions that MaintainPartitions found in
	// use; empty otherwise. Result has the changes made before that.
	Outcome string `json:"outcome,omitempty"`
}

// Audit returns a page of the audit log, newest first, and the start of the next page, "" at the end.
func (a *Admin) Audit(ctx context.Context, p Page) ([]AuditEntry, string, error) {
	if p.Limit < 0 || p.Limit > maxPage {
		return nil, "", invalid("admin: Page.Limit is %d: use 1 to %d, or 0 for %d", p.Limit, maxPage, defaultPage)
	}
	if p.Limit == 0 {
		p.Limit = defaultPage
	}
	before := int64(math.MaxInt64)
	if p.After != "" {
		var err error
		if before, err = strconv.ParseInt(p.After, 10, 64); err != nil {
			return nil, "", errCursor
		}
	}
	list := []AuditEntry{}
	err := a.collect(ctx, func(rows drive.Rows) error {
		var e AuditEntry
		var filter string
		var ended sql.NullTime
		err := rows.Scan(&e.ID, &e.At, &e.Role, &e.Actor, &e.Action, &e.Reason, &filter,
			&e.Result.Matched.N, &e.Result.Touched, &e.Result.Skipped, &e.Result.Compared, &ended,
			&e.Outcome)
		_ = json.Unmarshal([]byte(filter), &e.Filter) // rows written by hand may hold anything
		e.Result.AuditID, e.EndedAt = e.ID, ended.Time
		list = append(list, e)
		return err
	}, sqltext.Audit, before, int64(p.Limit)+1)
	if err != nil {
		return nil, "", fmt.Errorf("read the audit log: %w", err)
	}
	if len(list) <= p.Limit {
		return list, "", nil
	}
	return list[:p.Limit], strconv.FormatInt(list[p.Limit-1].ID, 10), nil
}
