package forwarder

import (
	"context"
	"fmt"

	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// prepareSettling returns an error if dead letters must be written and the connection's role may not write them: every
// death would fail, again and again.
func (e *engine) prepareSettling(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	mayWrite := false
	err := drive.Collect(ctx, e.db, func(rows drive.Rows) error { return rows.Scan(&mayWrite) }, e.sql.mayWrite)
	if err == nil && !mayWrite && e.cfg.DeadLetterTopic != "" {
		err = fmt.Errorf("forwarder: DeadLetterTopic is set and the role may not insert into %s: "+
			"grant it what schema.Roles grants a writer",
			e.cfg.tables.OutboxName())
	}
	return err
}
