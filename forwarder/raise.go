package forwarder

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// raise finds the long transactions that have not written to the outbox, so that their end does not make us read again
// everything written since they began.
func (r *reader) raise(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.e.cfg.QueryTimeout)
	defer cancel()
	writers := map[uint32]bool{}
	err := drive.Collect(ctx, r.q, func(rows drive.Rows) error {
		var xid int64
		err := rows.Scan(&xid)
		writers[uint32(xid)] = true
		return err
	}, r.e.sql.writers)
	if err != nil {
		r.e.logger.Debug("could not check for long transactions: reading "+
			"continues", watermill.LogFields{"err": err.Error()})
		return
	}
	r.e.step(func(_ time.Time, m *machine.Machine) { m.WritersSeen(writers) })
}
