package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// hearing is how long a notification may take, connecting included: one that does not come is waited for, whatever
// QueryTimeout says.
const hearing = 5 * time.Second

// checkNotifyQueue looks at how full the queue of notifications is.
func (e *exam) checkNotifyQueue(ctx context.Context) error {
	var usage float64
	var s session
	return e.rows(ctx, append([]any{&usage}, s.columns()...), func() {
		if usage < 0.1 {
			return
		}
		severity := Warning
		if usage > 0.5 {
			severity = Critical
		}
		evidence := fmt.Sprintf("the server's queue of notifications is %.0f %% full; once it is full, NOTIFY fails",
			100*usage)
		if s.pid == 0 {
			e.find("notify_queue", severity, evidence,
				"find the session that listens and keeps its transaction open, and end it")
			return
		}
		e.find("notify_queue", severity, evidence+". The oldest transaction, possibly the culprit: "+s.String(),
			"end the session that listens and keeps its transaction open; the server's log names it among those with the "+
				"oldest transactions. If it is this one: "+s.end())
	}, sqltext.DoctorNotifyQueue)
}

// checkListen sends a notification and waits for it.
func (e *exam) checkListen(ctx context.Context) error {
	bound, cancel := context.WithTimeout(ctx, hearing)
	defer cancel()
	bound, cancelBound := e.bound(bound)
	defer cancelBound()
	err := e.db.Hear(bound)
	switch {
	case errors.Is(err, drive.ErrNoListen):
		e.find("listen", Info, err.Error(),
			"for notifications give forwarders a pgx pool that reaches Postgres directly; "+
				"or set forwarder.Config.DisableListen, and PollInterval to how long a message may wait")
		return nil
	case err != nil && ctx.Err() == nil && bound.Err() != nil:
		e.find("listen", Warning, "a notification did not arrive: "+err.Error(),
			"forwarders poll until it works; check the server's log, and what is between the server and this process")
		return nil
	}
	return err
}

// literal writes text as SQL.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
