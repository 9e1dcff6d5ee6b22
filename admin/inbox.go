package admin

import (
	"context"
	"database/sql"
	"maps"
	"slices"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// inboxTable is the inbox of the Router's handlers.
type inboxTable struct{ *Admin }

func (inboxTable) states() []State { return []State{Ready, Failing, Dead, Done, Discarded} }

func (inboxTable) validate(f Filter) error {
	if f.Topic != "" || f.Key != "" {
		return invalid("admin: Filter.Topic and Filter.Key are for the outbox and the queue: " +
			"messages of the inbox have a consumer")
	}
	_, _, err := namesOf(f.IDs)
	return err
}

// joinID makes one text of what names a message in the inbox or the queue; splitID takes it apart.
func joinID(owner, name string) string {
	return strings.NewReplacer("%", "%25", ":", "%3A").Replace(owner) + ":" + name
}

func splitID(id string) (owner, name string, err error) {
	owner, name, ok := strings.Cut(id, ":")
	if !ok || owner == "" || name == "" || !text.Storable(id) {
		return "", "", invalid("%q is not an id of a message: use its consumer or source, a colon, and its id", id)
	}
	return strings.NewReplacer("%3A", ":", "%25", "%").Replace(owner), name, nil
}

func namesOf(ids []string) (owners, names []string, err error) {
	owners, names = make([]string, len(ids)), make([]string, len(ids))
	for i, id := range ids {
		if owners[i], names[i], err = splitID(id); err != nil {
			return nil, nil, err
		}
	}
	return owners, names, nil
}

func (inboxTable) place(id string) (place, error) {
	owner, name, err := splitID(id)
	return place{Owner: owner, Name: name}, err
}

func (t inboxTable) step(ctx context.Context, w *walk) (list []found, next *place, err error) {
	f, from := w.filter, *w.from
	states := []string{}
	if w.state != "" {
		states = append(states, string(w.state))
	}
	if from.At == "" {
		from.At = "-infinity"
	}
	args := []any{
		f.Consumer, f.ErrorContains, stamp(f.After), stamp(f.Before), w.look, int64(w.want), states, from.Owner, from.Name,
	}
	var statement string
	switch {
	case len(f.IDs) > 0:
		owners, names, err := namesOf(f.IDs)
		if err != nil {
			return nil, nil, err
		}
		statement, args = sqltext.WalkInboxIDs, append(args, owners, names)
	case w.state == Dead:
		statement, args = sqltext.WalkInboxDead, append(args, from.At)
	case w.state == Failing || w.state == Ready:
		statement, args = sqltext.WalkInboxFailing, append(args, from.At)
	default:
		statement = sqltext.WalkInboxRows
	}
	return t.walked(ctx, w.want, func(m *found) []any { return []any{&m.Owner, &m.At, &m.Name, &m.err} },
		statement, args...)
}

func (t inboxTable) show(ctx context.Context, places []place) ([]Message, error) {
	return t.showNamed(ctx, sqltext.ShowInbox, places, func(rows drive.Rows, m *Message) error {
		var dead, settled sql.NullTime
		err := rows.Scan(&m.Consumer, &m.UUID, &m.State, &m.Attempts, &m.LastError, &m.CreatedAt, &dead, &settled)
		m.In, m.DeadAt, m.SettledAt = Inbox, dead.Time, settled.Time
		return err
	})
}

func (t inboxTable) end(ctx context.Context) (q asked, err error) {
	q.at, err = t.now(ctx)
	return q, err
}

func (t inboxTable) change(ctx context.Context, d *doing, states []State, batch []place) (int64, error) {
	owners, ids := make([]string, len(batch)), make([]string, len(batch))
	for i, p := range batch {
		owners[i], ids[i] = p.Owner, p.Name
	}
	if d.verb.name == redrive.name {
		letters := make([]int64, len(batch))
		for i, p := range batch {
			letters[i] = d.letters[p.digest()]
		}
		return t.number(ctx, sqltext.RedriveInbox, owners, ids, names(states), d.result.AuditID, letters)
	}
	statement := sqltext.RequeueInbox
	if d.verb.name == discard.name {
		statement = sqltext.DiscardInbox
	}
	return t.number(ctx, statement, owners, ids, names(states), d.result.AuditID, d.note())
}

// payload is nothing: the inbox keeps identities alone.
func (inboxTable) payload(context.Context, place) ([]byte, error) { return nil, nil }

func (t inboxTable) group(ctx context.Context, f Filter, state State, b bounds, add func(errorText)) error {
	statement := sqltext.GroupInboxDead
	if state == Failing {
		statement = sqltext.GroupInboxFailing
	}
	return t.collect(ctx, func(rows drive.Rows) error {
		var e errorText
		err := rows.Scan(&e.owner, &e.text, &e.count.N, &e.first, &e.last, &e.count.More)
		add(e)
		return err
	}, statement, f.Consumer, f.ErrorContains, stamp(f.After), stamp(f.Before), b.each, int64(maxTexts), b.all, b.attempts)
}

// consumers counts what consumers have that is dead or failing.
func (a *Admin) consumers(ctx context.Context, b bounds) ([]ConsumerStats, error) {
	byName := map[string]*ConsumerStats{}
	for _, state := range []State{Dead, Failing} {
		statement := sqltext.CountInboxDead
		if state == Failing {
			statement = sqltext.CountInboxFailing
		}
		err := a.collect(ctx, func(rows drive.Rows) error {
			var name string
			var c Count
			var oldest float64
			var often int64
			err := rows.Scan(&name, &c.N, &c.More, &oldest, &often)
			s := byName[name]
			if s == nil {
				s = &ConsumerStats{Consumer: name}
				byName[name] = s
			}
			if state == Dead {
				s.Dead = c
			} else {
				s.Failing, s.FailingOften, s.Oldest = c, Count{N: often, More: c.More}, seconds(oldest)
			}
			return err
		}, statement, b.each, b.all)
		if err != nil {
			return nil, err
		}
	}
	list := make([]ConsumerStats, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		list = append(list, *byName[name])
	}
	return list, nil
}
