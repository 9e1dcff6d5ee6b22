package admin

import (
	"context"
	"database/sql"
	"math"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// queueTable is the queue of package queue.
type queueTable struct{ *Admin }

func (queueTable) states() []State { return []State{Ready, Delayed, Failing, Dead, Done, Seen} }

func (queueTable) validate(f Filter) error {
	_, _, err := namesOf(f.IDs)
	return err
}

func (queueTable) place(id string) (place, error) { return inboxTable{}.place(id) }

func (t queueTable) step(ctx context.Context, w *walk) (list []found, next *place, err error) {
	f, from := w.filter, *w.from
	start := from == place{}
	if from.At == "" {
		from.At = "-infinity"
	}
	states := []string{}
	if w.state != "" {
		states = names([]State{w.state})
	}
	var statement string
	var extra []any
	switch {
	case len(f.IDs) > 0:
		owners, names, err := namesOf(f.IDs)
		if err != nil {
			return nil, nil, err
		}
		statement, extra = sqltext.WalkQueueIDs, []any{owners, names}
	case w.state == Dead && w.newest:
		if statement = sqltext.WalkQueueDead; start {
			from.ID = math.MaxInt64
		}
	case w.state == Dead:
		statement = sqltext.WalkQueueDeadUp
	case w.state == Ready:
		statement = sqltext.WalkQueueReady
	case w.state == Failing || w.state == Delayed || w.state == due:
		statement, extra = sqltext.WalkQueueWaiting, []any{from.At}
	default:
		statement, extra, from.ID = sqltext.WalkQueueRows, []any{from.Owner, from.Name}, math.MinInt64
	}
	args := append([]any{
		f.Topic, f.Key, f.Consumer, f.ErrorContains, stamp(f.After), stamp(f.Before), w.look, int64(w.want), states, from.ID,
	}, extra...)
	return t.walked(ctx, w.want, func(m *found) []any { return []any{&m.ID, &m.At, &m.Owner, &m.Name, &m.err} },
		statement, args...)
}

func (t queueTable) show(ctx context.Context, places []place) ([]Message, error) {
	return t.showNamed(ctx, sqltext.ShowQueue, places, func(rows drive.Rows, m *Message) error {
		var metadata string
		var due, settled sql.NullTime
		err := rows.Scan(&m.Consumer, &m.UUID, &m.Topic, &m.Key, &m.State, &m.Attempts, &m.LastError, &metadata, &m.CreatedAt,
			&due, &settled, &m.Crashes)
		m.In, m.DueAt, m.SettledAt, m.Metadata = Queue, due.Time, settled.Time, core.ReadMetadata([]byte(metadata))
		return err
	})
}

func (t queueTable) end(ctx context.Context) (q asked, err error) {
	q.at, err = t.now(ctx)
	return q, err
}

func (t queueTable) change(ctx context.Context, d *doing, states []State, batch []place) (int64, error) {
	owners, ids := make([]string, len(batch)), make([]string, len(batch))
	for i, p := range batch {
		owners[i], ids[i] = p.Owner, p.Name
	}
	statement := map[string]string{
		requeue.name: sqltext.RequeueQueue, discard.name: sqltext.DiscardQueue, retryNow.name: sqltext.RetryNowQueue,
	}[d.verb.name]
	return t.number(ctx, statement, owners, ids, names(states), d.result.AuditID, d.note())
}

func (t queueTable) payload(ctx context.Context, p place) (payload []byte, err error) {
	err = t.collect(ctx, func(rows drive.Rows) error { return rows.Scan(&payload) }, sqltext.QueuePayload, p.Owner, p.Name)
	if text.SQLState(err) == text.InsufficientPrivilege {
		return nil, nil
	}
	return payload, err
}

func (t queueTable) group(ctx context.Context, f Filter, state State, b bounds, add func(errorText)) error {
	return t.collect(ctx, func(rows drive.Rows) error {
		var e errorText
		err := rows.Scan(&e.owner, &e.text, &e.count.N, &e.first, &e.last, &e.count.More)
		add(e)
		return err
	}, sqltext.GroupQueue, f.Topic, f.Key, f.Consumer, f.ErrorContains, stamp(f.After), stamp(f.Before), b.each,
		int64(maxTexts), string(state), b.attempts)
}

// queue counts what is in the queue.
func (a *Admin) queue(ctx context.Context, b bounds) ([]TopicStats, error) {
	t := topicSet{}
	err := a.collect(ctx, func(rows drive.Rows) error {
		var state State
		var topic string
		var c Count
		var oldest float64
		var often int64
		err := rows.Scan(&state, &topic, &c.N, &c.More, &oldest, &often)
		t.note(state, topic, c, oldest, often)
		return err
	}, sqltext.CountQueue, b.each)
	if text.SQLState(err) == text.UndefinedTable { // the database is at an older migration, and has an outbox all the same
		return t.sorted(), nil
	}
	if err == nil && t.partly() && b.budget > 0 {
		err = a.estimate(ctx, t, sqltext.QueuePages, sqltext.SampleQueue)
	}
	if err == nil {
		err = a.rates(ctx, t, sqltext.QueueRates)
	}
	return t.sorted(), err
}
