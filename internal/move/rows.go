package move

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/envelope"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// rows reads the rows of a watermill-sql table.
type rows struct {
	watermillTable
	envelopes *envelope.Envelopes
	dryRun    bool
	last      item // the last one read
}

func (r *rows) count(ctx context.Context, q drive.Querier, statement string, args ...any) (n int64, err error) {
	err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&n) }, r.fill.Replace(statement), args...)
	return n, err
}

// read returns the messages in the rows of a statement.
func (r *rows) read(ctx context.Context, q drive.Querier, statement string, args ...any) (items []item, err error) {
	err = drive.Collect(ctx, q, func(found drive.Rows) error {
		var it item
		var uuid, metadata string
		var payload []byte
		if err := found.Scan(&it.id, &it.xid, &uuid, &payload, &metadata); err != nil {
			return err
		}
		it.row = fmt.Sprintf("row with offset %d, uuid %q", it.id, uuid)
		it.raw = message.NewMessage(uuid, payload)
		if it.err = json.Unmarshal([]byte(metadata), &it.raw.Metadata); it.err != nil {
			it.raw.Metadata = core.ReadMetadata([]byte(metadata)) // readable enough to view a dead message
		}
		items = append(items, it)
		return nil
	}, r.reading(statement), args...)
	for i := range items {
		it := &items[i]
		if it.err == nil {
			it.topic, it.msg, it.err = r.envelopes.Open(it.raw)
		}
		if it.err == nil {
			envelope.KeepDelay(it.msg, it.raw.Metadata)
		} else {
			it.err = fmt.Errorf("%w (WatermillConfig.Marshaler must be the one that wrote it; WatermillConfig.UnreadableAsDead "+
				"makes such rows dead messages)", it.err)
		}
		r.last = *it
	}
	return items, err
}

// log is a table with DefaultPostgreSQLSchema.
type log struct {
	rows
	group string
}

var _ side = (*log)(nil)

// local refuses a log with transaction ids of another server, because rows written to it would never be delivered.
func (l *log) local(ctx context.Context, db *core.DB) error {
	foreign := false
	err := drive.Collect(ctx, db, func(rows drive.Rows) error {
		return rows.Scan(&foreign)
	}, l.fill.Replace(sqltext.LogIsForeign), l.group)
	if err == nil && foreign {
		err = errForeign
	}
	return err
}

// check refuses a log whose pending rows cannot be determined.
func (l *log) check(ctx context.Context, db *core.DB) error {
	if err := l.local(ctx, db); err != nil {
		return err
	}
	var groups []string
	err := drive.Collect(ctx, db, func(rows drive.Rows) error {
		var g string
		err := rows.Scan(&g)
		groups = append(groups, g)
		return err
	}, l.fill.Replace(sqltext.LogGroups))
	if err != nil {
		return err
	}
	for _, g := range groups {
		if g == l.group {
			return nil
		}
	}
	if len(groups) > 0 {
		return fmt.Errorf("WatermillConfig.ConsumerGroup: %q has never read, so all rows of the table would be published "+
			"again: the groups that have are %q", l.group, groups)
	}
	return nil
}

func (l *log) pending(ctx context.Context, q drive.Querier) (int64, error) {
	return l.count(ctx, q, sqltext.CountLog, l.group)
}

func (l *log) take(ctx context.Context, q drive.Querier, limit int) ([]item, error) {
	at := item{xid: "0"}
	if l.dryRun && l.last.xid != "" {
		at = l.last
	} else if err := l.position(ctx, q, &at); err != nil {
		return nil, err
	}
	return l.read(ctx, q, sqltext.ReadLog, at.xid, at.id, limit)
}

// position locks the position of the group and returns it, or the beginning for a group that has never read.
func (l *log) position(ctx context.Context, q drive.Querier, at *item) error {
	for range 2 {
		found := false
		err := drive.Collect(ctx, q, func(rows drive.Rows) error {
			found = true
			return rows.Scan(&at.id, &at.xid)
		}, l.fill.Replace(sqltext.LogPosition), l.group)
		if err != nil || found || l.dryRun {
			return lockingRows(err)
		}
		if _, err := q.Exec(ctx, l.fill.Replace(sqltext.BeginLog), l.group); err != nil {
			return err
		}
	}
	return fmt.Errorf("the position of consumer group %q vanishes as soon as it is written", l.group)
}

func (l *log) lock() lock {
	return lock{
		of: "the position of consumer group", in: l.offsets,
		by:        "stop Watermill's forwarder, which keeps it while its broker refuses a message",
		statement: l.fill.Replace(sqltext.LogHolder), args: []any{l.group},
	}
}

func (l *log) done(ctx context.Context, q drive.Querier, taken []item) error {
	last := taken[len(taken)-1]
	_, err := q.Exec(ctx, l.fill.Replace(sqltext.AdvanceLog), l.group, last.xid, last.id)
	return err
}

// queue is a table with PostgreSQLQueueSchema.
type queue struct{ rows }

var _ side = (*queue)(nil)

func (u *queue) pending(ctx context.Context, q drive.Querier) (int64, error) {
	return u.count(ctx, q, sqltext.CountUnacked)
}

func (u *queue) take(ctx context.Context, q drive.Querier, limit int) ([]item, error) {
	items, err := u.read(ctx, q, sqltext.ReadQueue, u.last.id, limit)
	return items, lockingRows(err)
}

func (u *queue) lock() lock {
	return lock{
		of: "row with offset", in: u.messages,
		by:        "stop Watermill's forwarder, which keeps it while its broker refuses the message",
		statement: u.fill.Replace(sqltext.QueueHolder), args: []any{u.last.id},
	}
}

func (u *queue) done(ctx context.Context, q drive.Querier, taken []item) error {
	ids := make([]int64, len(taken))
	for i, it := range taken {
		ids[i] = it.id
	}
	_, err := q.Exec(ctx, u.fill.Replace(sqltext.AckQueue), ids)
	return err
}
