package admin

import (
	"context"
	"database/sql"
	"encoding/json"
	"math"
	"strconv"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// outboxTable is the outbox.
type outboxTable struct{ *Admin }

func (outboxTable) states() []State { return []State{Ready, Delayed, Failing, Dead, Done, Discarded} }

func (outboxTable) validate(f Filter) error {
	if f.Consumer != "" {
		return invalid("admin: Filter.Consumer is for the inbox and the queue: messages of the outbox have a topic")
	}
	_, err := outboxIDs(f.IDs)
	return err
}

func outboxIDs(list []string) ([]int64, error) {
	ids := make([]int64, len(list))
	for i, s := range list {
		var err error
		if ids[i], err = strconv.ParseInt(s, 10, 64); err != nil {
			return nil, invalid("%q is not an id of the outbox: use the number of the message", s)
		}
	}
	return ids, nil
}

func (outboxTable) place(id string) (place, error) {
	ids, err := outboxIDs([]string{id})
	if err != nil {
		return place{}, err
	}
	return place{ID: ids[0]}, nil
}

func (o outboxTable) step(ctx context.Context, w *walk) (list []found, next *place, err error) {
	f, from := w.filter, *w.from
	states := []string{}
	if w.state != "" {
		states = names([]State{w.state})
	}
	down, extra := false, []any(nil)
	var statement string
	switch {
	case len(f.IDs) > 0:
		ids, err := outboxIDs(f.IDs)
		if err != nil {
			return nil, nil, err
		}
		statement, extra = sqltext.WalkIDs, []any{states, ids}
	case w.state == Dead && w.newest:
		statement, down = sqltext.WalkDead, true
	case w.state == Dead:
		statement = sqltext.WalkDeadUp
	case w.state == Failing:
		statement = sqltext.WalkFailing
	case w.state == Ready:
		statement = sqltext.WalkReady
	case w.state == Delayed || w.state == due:
		if from.At == "" {
			from.At = "-infinity"
		}
		if statement, extra = sqltext.WalkDelayed, []any{from.At}; w.state == due {
			statement = sqltext.WalkDue
		}
	case w.newest:
		statement, extra, down = sqltext.WalkRows, []any{states}, true
	default:
		statement, extra = sqltext.WalkRowsUp, []any{states}
	}
	if from == (place{}) || from == (place{At: "-infinity"}) {
		if from.ID = math.MinInt64; down {
			from.ID = math.MaxInt64
		}
	}
	args := append([]any{
		f.Topic, f.Key, f.ErrorContains, stamp(f.After), stamp(f.Before), from.ID, w.upto, w.look, int64(w.want),
	}, extra...)
	return o.walked(ctx, w.want, func(m *found) []any { return []any{&m.ID, &m.At, &m.key, &m.err} }, statement, args...)
}

func (o outboxTable) show(ctx context.Context, places []place) ([]Message, error) {
	ids := make([]int64, len(places))
	for i, p := range places {
		ids[i] = p.ID
	}
	byID := make(map[int64]Message, len(ids))
	if len(ids) == 0 { // the planner may look for nothing everywhere
		return []Message{}, nil
	}
	err := o.collect(ctx, func(rows drive.Rows) error {
		var m Message
		var id int64
		var metadata string
		var due, dead, settled sql.NullTime
		err := rows.Scan(&id, &m.UUID, &m.Topic, &m.Key, &m.State, &m.Attempts, &m.LastError, &metadata, &m.CreatedAt, &due,
			&dead, &settled)
		m.ID, m.DueAt, m.DeadAt, m.SettledAt = strconv.FormatInt(id, 10), due.Time, dead.Time, settled.Time
		m.LastError = text.Redact(m.LastError)
		m.ErrorGroup, m.Metadata = groupID(m.LastError), core.ReadMetadata([]byte(metadata))
		byID[id] = m
		return err
	}, sqltext.ShowOutbox, ids)
	list := make([]Message, 0, len(ids))
	for _, id := range ids {
		if m, ok := byID[id]; ok {
			list = append(list, m)
		}
	}
	return list, err
}

func (o outboxTable) end(ctx context.Context) (q asked, err error) {
	q.upto, err = o.number(ctx, sqltext.LastOutboxID)
	return q, err
}

func (o outboxTable) change(ctx context.Context, d *doing, states []State, batch []place) (int64, error) {
	ids := make([]int64, len(batch))
	for i, p := range batch {
		ids[i] = p.ID
	}
	args := []any{ids, names(states), d.result.AuditID, int64(len(ids))}
	switch d.verb.name {
	case retryNow.name:
		return o.number(ctx, sqltext.RetryNowOutbox, append(args, d.note())...)
	case discard.name, skip.name:
		return o.number(ctx, sqltext.DiscardOutbox, append(args, d.note())...)
	}
	var changed int64
	var skipped []byte
	err := o.fetch(ctx, func(rows drive.Rows) error { return rows.Scan(&changed, &skipped) },
		sqltext.RequeueOutbox, append(args, d.skipped)...)
	if err != nil {
		return 0, err
	}
	var keys []string
	if err := json.Unmarshal(skipped, &keys); err != nil {
		return changed, err
	}
	d.skipped = append(d.skipped, keys...)
	return changed, nil
}

func (o outboxTable) payload(ctx context.Context, p place) (payload []byte, err error) {
	err = o.collect(ctx, func(rows drive.Rows) error { return rows.Scan(&payload) }, sqltext.OutboxPayload, p.ID)
	if text.SQLState(err) == text.InsufficientPrivilege {
		return nil, nil
	}
	return payload, err
}
