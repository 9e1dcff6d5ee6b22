package move

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

const (
	actImport = "import"
	actExport = "export"
)

// act is the audit log entry of a move. The first batch writes it in its transaction, and each batch adds the number of
// messages that it moved, so the entry is correct however the move ends.
type act struct {
	actor, action, reason string
	what                  string // "from TABLE", the beginning of the reason
}

func (a *act) check(config string) error {
	if a.actor == "" {
		a.actor = "outboxctl"
	}
	for _, f := range []struct {
		field, value string
		most         int
	}{{"Actor", a.actor, text.MaxActorBytes}, {"Reason", a.reason, text.MaxReasonBytes}} {
		if len(f.value) > f.most || !text.Storable(f.value) {
			return fmt.Errorf("%s.%s must be UTF-8 without NUL, of at most %d bytes", config, f.field, f.most)
		}
	}
	return nil
}

// record adds a batch to the entry in the audit log.
func (a *act) record(ctx context.Context, db *core.DB, q drive.Querier, r *Result, moved int) error {
	if r.AuditID == 0 {
		reason := strings.TrimSuffix(a.what+": "+a.reason, ": ")
		err := drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&r.AuditID) },
			db.Render(sqltext.BeginAct), a.actor, a.action, reason, `{"in": "outbox"}`)
		if err != nil {
			return fmt.Errorf("audit log: %w", text.Explain(err))
		}
	}
	if _, err := q.Exec(ctx, db.Render(sqltext.CountClean), r.AuditID, int64(moved)); err != nil {
		return fmt.Errorf("audit log: %w", text.Explain(err))
	}
	return nil
}

// endTimeout bounds the last write of a move whose context has ended.
const endTimeout = 5 * time.Second

// end records the end of the move and its error, if any, and returns err.
func (a *act) end(ctx context.Context, db *core.DB, r Result, err error) error {
	outcome := ""
	switch {
	case r.AuditID == 0:
		return err
	case ctx.Err() != nil:
		outcome = "interrupted: " + text.OfError(ctx.Err())
	case err != nil:
		outcome = text.OfError(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if _, failed := db.Exec(ctx, db.Render(sqltext.EndAct), r.AuditID, outcome); failed != nil && err == nil {
		return fmt.Errorf("audit log: %w", text.Explain(failed))
	}
	return err
}
