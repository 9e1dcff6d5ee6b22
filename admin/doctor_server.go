package admin

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// notifyTimeout limits how long a notification may take, including the time to connect. It replaces QueryTimeout.
const notifyTimeout = 5 * time.Second

// checkListen sends a notification and waits for it.
func (e *doctorRun) checkListen(ctx context.Context) error {
	bound, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	bound, cancelBound := e.bound(bound)
	defer cancelBound()
	err := e.db.CheckNotify(bound)
	switch {
	case errors.Is(err, drive.ErrNoListen):
		e.find("listen", Info, err.Error(),
			"for notifications give forwarders a pgx pool that reaches Postgres directly; "+
				"or set forwarder.Config.DisableListen, and PollInterval to how long a message may wait")
		return nil
	case err != nil && ctx.Err() == nil && bound.Err() != nil:
		e.find("listen", Warning, "a notification did not arrive: "+err.Error(),
			"forwarders poll until it works; check the server's log, and any pooler or proxy between the server and this "+
				"process")
		return nil
	}
	return err
}

// literal quotes text as an SQL literal.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
