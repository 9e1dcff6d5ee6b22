package admin

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// store is a table of messages: its columns, and the statements for it.
type store struct {
	*Admin
	in Table
	tableStore
}

type tableStore struct {
	sql    *sqltext.Store
	states []State
}

var stores = map[Table]tableStore{
	Outbox: {sqltext.Outbox, []State{Ready, Delayed, Failing, Dead, Done, Discarded}},
	Inbox:  {sqltext.Inbox, []State{Ready, Failing, Dead, Done, Discarded}},
	Queue:  {sqltext.Queue, []State{Ready, Delayed, Failing, Dead, Done, Seen}},
}

func (a *Admin) store(t Table) (store, error) {
	s, ok := stores[t]
	if !ok {
		return store{}, invalid("admin: there is no table %d of messages: use Outbox, Inbox or Queue", int(t))
	}
	return store{a, t, s}, nil
}

// validate refuses fields of a filter that do not apply to this table.
func (s store) validate(f Filter) error {
	switch {
	case s.in == Outbox && f.Consumer != "":
		return invalid("admin: Filter.Consumer is for the inbox and the queue: messages of the outbox have a topic")
	case s.in == Inbox && f.Topic+f.Key != "":
		return invalid("admin: Filter.Topic and Filter.Key are for the outbox and the queue: " +
			"messages of the inbox have a consumer")
	}
	_, err := s.places(f.IDs)
	return err
}

// places parses Message.ID values.
func (s store) places(ids []string) ([]place, error) {
	list := make([]place, len(ids))
	for i, id := range ids {
		if s.in == Outbox {
			n, err := strconv.ParseInt(id, 10, 64)
			if err != nil {
				return nil, invalid("%q is not an id of the outbox: use the number of the message", id)
			}
			list[i] = numbered(n)
			continue
		}
		owner, name, ok := strings.Cut(id, ":")
		if !ok || owner == "" || name == "" || !text.Storable(id) {
			return nil, invalid("%q is not an id of a message: use its consumer or source, a colon, and its id", id)
		}
		list[i] = place{Owner: strings.NewReplacer("%3A", ":", "%25", "%").Replace(owner), Name: name}
	}
	return list, nil
}

func numbered(id int64) place { return place{Name: strconv.FormatInt(id, 10), ID: id} }

// id returns the Message.ID.
func (p place) id() string {
	if p.Owner == "" {
		return p.Name
	}
	return joinID(p.Owner, p.Name)
}

func joinID(owner, name string) string {
	return strings.NewReplacer("%", "%25", ":", "%3A").Replace(owner) + ":" + name
}

// arrays returns places as arguments of statements.
func arrays(places []place) (owners, names []string) {
	owners, names = make([]string, len(places)), make([]string, len(places))
	for i, p := range places {
		owners[i], names[i] = p.Owner, p.Name
	}
	return owners, names
}

// versions returns the versions of places as an argument of statements.
func versions(places []place) []int64 {
	list := make([]int64, len(places))
	for i, p := range places {
		list[i] = p.version
	}
	return list
}

// args returns the arguments of a scan.
func (s store) args(
	f Filter, states []State, batch int64, want int, upto int64, from place, all, attempts int64,
) []any {
	places, _ := s.places(f.IDs) // validate has checked them
	owners, ids := arrays(places)
	return []any{
		f.Topic, f.Key, f.Consumer, f.ErrorContains, stamp(f.After), stamp(f.Before), names(states), batch, int64(want), upto,
		from.Owner, cmp.Or(from.At, "-infinity"), from.Name, from.ID, owners, ids, f.find, all,
		int32(min(attempts, math.MaxInt32)),
	}
}

// step returns matching messages, and where the next step continues; nil at the end.
func (s store) step(ctx context.Context, w *walk) (list []found, next *place, err error) {
	by, from, states := w.scan(s), *w.from, []State{}
	if w.state != "" {
		states = append(states, w.state)
	}
	if from == (place{}) {
		if from.ID = math.MinInt64; strings.HasPrefix(by, "newest") {
			from.ID = math.MaxInt64
		}
	}
	err = s.collect(ctx, func(rows drive.Rows) error {
		var m found
		var horizon bool
		err := rows.Scan(&horizon, &m.Owner, &m.At, &m.Name, &m.ID, &m.key, &m.err, &m.version)
		if horizon {
			next = &m.place
		} else {
			list = append(list, m)
		}
		return err
	}, s.sql.Page[by], s.args(w.filter, states, w.batch, w.want, w.upto, from, math.MaxInt64, 0)...)
	if n := len(list); n == w.want {
		next = &list[n-1].place
	}
	return list, next, err
}

// scan returns the name of the scan for a walk.
func (w *walk) scan(s store) string {
	by := string(w.state)
	switch {
	case len(w.filter.IDs) > 0:
		return "ids"
	case w.filter.find != "" && s.in != Outbox:
		return "find"
	case s.sql.Page[by] == "":
		by = "rows"
	}
	if w.newest && s.sql.Page["newest "+by] != "" {
		return "newest " + by
	}
	return by
}

// show reads messages in the given order. Deleted messages are left out.
func (s store) show(ctx context.Context, places []place) ([]Message, error) {
	list := make([]Message, 0, len(places))
	owners, ids := arrays(places)
	err := s.collect(ctx, func(rows drive.Rows) error {
		m := Message{In: s.in}
		var name, metadata string
		var due, dead, settled sql.NullTime
		err := rows.Scan(&m.Consumer, &name, &m.UUID, &m.Topic, &m.Key, &m.State, &m.Attempts, &m.Crashes, &m.LastError,
			&metadata, &m.CreatedAt, &due, &dead, &settled)
		m.ID, m.LastError = place{Owner: m.Consumer, Name: name}.id(), text.Redact(m.LastError)
		m.ErrorGroup, m.DueAt, m.DeadAt, m.SettledAt = groupID(m.LastError), due.Time, dead.Time, settled.Time
		if metadata != "" {
			m.Metadata = core.ReadMetadata([]byte(metadata))
		}
		if s.in == Outbox && m.Attempts == 1 && m.LastError == "" {
			m.Attempts = 0 // requeued by an operator, with no failure since
		}
		if !slices.Contains([]State{Ready, Delayed, Failing}, m.State) {
			m.DueAt = time.Time{} // the column keeps the time of the last retry
		}
		if m.State == Done && !strings.HasPrefix(m.LastError, discard.Stored+" by ") {
			m.LastError, m.ErrorGroup = "", "" // it is over; the timeline keeps it
		}
		list = append(list, m)
		return err
	}, s.sql.Show, owners, ids)
	return list, err
}

// payload reads the payload, which show does not.
func (s store) payload(ctx context.Context, p place) (payload []byte, err error) {
	err = s.collect(ctx, func(rows drive.Rows) error { return rows.Scan(&payload) }, s.sql.Payload, p.Owner, p.Name)
	if text.SQLState(err) == text.InsufficientPrivilege {
		return nil, nil
	}
	return payload, err
}

// end returns the bound for an act that begins now.
func (s store) end(ctx context.Context) (q asked, err error) {
	if s.in == Outbox {
		q.upto, err = s.number(ctx, sqltext.LastOutboxID)
		return q, err
	}
	q.upto = math.MaxInt64
	q.at, err = s.now(ctx)
	return q, err
}

// change applies an act to a batch of messages that are still in one of the states, and returns their number.
func (s store) change(ctx context.Context, d *doing, states []State, batch []place) (changed int64, err error) {
	statement, argument := s.sql.Act[d.verb.Name], any(d.storedError())
	switch {
	case d.verb.Name == redrive.Name:
		deadLetters := make([]int64, len(batch))
		for i, p := range batch {
			deadLetters[i] = d.deadLetters[p.digest()]
		}
		statement, argument = sqltext.RedriveInbox, deadLetters
	case statement != "":
	case s.in == Outbox: // for requeue, replay and reconcile
		statement, argument = sqltext.Requeue, d.skipped
	default:
		return 0, fmt.Errorf("admin: act %q has no statement for the %s", d.verb.Name, s.in)
	}
	owners, ids := arrays(batch)
	args := []any{owners, ids, names(states), d.result.AuditID, argument}
	if s.sql.Act[d.verb.Name] != "" {
		args = append(args, versions(batch))
	}
	var blocked []byte
	var drawn *int64
	err = s.fetch(ctx, func(rows drive.Rows) error { return rows.Scan(&changed, &blocked, &drawn) }, statement, args...)
	if err != nil {
		return 0, err
	}
	var keys []string
	err = json.Unmarshal(blocked, &keys)
	d.skipped = append(d.skipped, keys...)
	return changed, err
}

// errorTexts counts dead or failing messages by topic or consumer and error. It only reads: normalizing thousands of
// errors takes longer than reading them, and Config.QueryTimeout limits the query.
func (s store) errorTexts(ctx context.Context, f Filter, state State, b bounds) (all []errorText, err error) {
	err = s.collect(ctx, func(rows drive.Rows) error {
		var e errorText
		err := rows.Scan(&e.owner, &e.text, &e.count.N, &e.first, &e.last, &e.count.More)
		all = append(all, e)
		return err
	}, s.sql.Group[string(state)],
		s.args(f, []State{state}, b.each, maxTexts, math.MaxInt64, place{ID: math.MaxInt64}, b.all, b.attempts)...)
	return all, err
}

// findSteps returns the searches of Find, fastest first.
func (a *Admin) findSteps(what string) (steps []Filter) {
	for _, in := range []Table{Outbox, Inbox, Queue} {
		s, _ := a.store(in)
		if p, err := s.places([]string{what}); err == nil { // it may be an id in this table
			steps = append(steps, Filter{In: in, IDs: []string{p[0].id()}}) // "0042" is 42
		}
	}
	return append(steps, Filter{In: Inbox, find: what}, Filter{In: Queue, find: what}, Filter{find: what},
		Filter{In: Queue, Key: what})
}
