package forwarder

import (
	"time"

	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// deadShare is how long dead messages of one table are discarded before other work has its turn.
const deadShare = 5 * time.Second

// oldDead discards the messages that have been dead for longer than DeadRetention.
func (e *engine) oldDead() []*clean.Dead {
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
