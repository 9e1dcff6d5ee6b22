package admin

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// place identifies a message and is its position in a walk.
type place struct {
	Owner string `json:"o,omitempty"` // consumer or source
	At    string `json:"a,omitempty"` // time in Postgres format
	Name  string `json:"m,omitempty"` // the message's id in its table
	ID    int64  `json:"i,omitempty"` // in the outbox

	version int64 // changes when the content is replaced
}

// found is a message that a walk has found.
type found struct {
	place
	key, err string
}

// walk iterates over the messages of one state.
type walk struct {
	filter Filter
	state  State // "" = all of Filter.States, or all
	newest bool  // newest first, where possible: for viewers
	from   *place
	upto   int64 // outbox: the largest id to include
	batch  int64 // rows of each topic, lane or consumer to read in the next step
	first  int64 // initial value of batch
	most   int64 // upper limit of batch
	want   int   // largest number of messages from the next step
}

const (
	firstStep    = 256
	laneStep     = 32 // instead of firstStep when reading 64 lanes
	maxStep      = 1 << 14
	matchingStep = 1 << 16                // instead of maxStep when reading only matching rows
	quickStep    = 100 * time.Millisecond // on a busy server even small steps wait longer for a processor than they take
)

// next makes one step, and lets the following step read more rows if there is time. For an error group it compares the
// text of each error here, since SQL cannot compute the group.
func (w *walk) next(ctx context.Context, s stepper) ([]found, error) {
	begun := time.Now()
	all, to, err := s.step(ctx, w)
	if err != nil {
		return nil, err
	}
	w.from = to
	if took := time.Since(begun); took < quickStep {
		w.batch = min(2*w.batch, w.most)
	} else if took > 4*quickStep {
		w.batch = max(w.batch/2, w.first)
	}
	if w.filter.ErrorGroup == "" {
		return all, nil
	}
	kept := all[:0]
	for _, f := range all {
		if groupID(f.err) == w.filter.ErrorGroup {
			kept = append(kept, f)
		}
	}
	return kept, nil
}

// stepper makes the steps of walks: a store.
type stepper interface {
	step(ctx context.Context, w *walk) ([]found, *place, error)
}

func newWalk(f Filter, state State) *walk {
	w := &walk{filter: f, state: state, from: &place{}, upto: math.MaxInt64, first: firstStep, most: maxStep}
	if f.In == Outbox && (state == "" || state == Done || state == Discarded) {
		w.most = matchingStep
	}
	if f.In == Outbox && (state == Ready || state == due || state == Delayed) && len(f.IDs) == 0 {
		w.first = laneStep
	}
	w.batch = w.first
	return w
}

// cursor is the content of List.Next: the number of finished states of the filter, and the position in the next one.
type cursor struct {
	Done int    `json:"s,omitempty"`
	From *place `json:"p,omitempty"`
}

func (c cursor) String() string {
	b, _ := json.Marshal(c) // cannot fail
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseCursor(s string) (c cursor, err error) {
	if s == "" {
		return c, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err == nil && (c.Done < 0 || c.From != nil && !text.Storable(c.From.Owner+c.From.At+c.From.Name)) {
		err = errors.New("it was changed")
	}
	if err != nil {
		return c, errCursor
	}
	return c, nil
}

var errCursor = invalid("admin: Page.After is not the Next of an earlier page")

// collect runs a read-only statement within Config.QueryTimeout.
func (a *Admin) collect(ctx context.Context, scan func(drive.Rows) error, statement string, args ...any) error {
	ctx, cancel := a.bound(ctx)
	defer cancel()
	return explain(a.db.Walk(ctx, scan, a.db.Render(statement), args...))
}

func (a *Admin) exec(ctx context.Context, statement string, args ...any) error {
	ctx, cancel := a.bound(ctx)
	defer cancel()
	_, err := a.db.Exec(ctx, a.db.Render(statement), args...)
	return explain(err)
}

// fetch runs a statement that may change rows, or that is fast under any plan.
func (a *Admin) fetch(ctx context.Context, scan func(drive.Rows) error, statement string, args ...any) error {
	ctx, cancel := a.bound(ctx)
	defer cancel()
	return explain(drive.Collect(ctx, a.db, scan, a.db.Render(statement), args...))
}

// number runs fetch for a statement that returns one number.
func (a *Admin) number(ctx context.Context, statement string, args ...any) (n int64, err error) {
	err = a.fetch(ctx, func(rows drive.Rows) error { return rows.Scan(&n) }, statement, args...)
	return n, err
}

// now is the time on the database's clock.
func (a *Admin) now(ctx context.Context) (now time.Time, err error) {
	err = a.collect(ctx, func(rows drive.Rows) error { return rows.Scan(&now) }, sqltext.Now)
	return now, err
}

func (a *Admin) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.cfg.QueryTimeout < 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, a.cfg.QueryTimeout)
}

func explain(err error) error {
	if text.SQLState(err) == text.InsufficientPrivilege {
		return fmt.Errorf("%w (schema.Roles, or outboxctl migrate roles, prints what each role needs)", err)
	}
	return text.Explain(err)
}

// due means Ready with a time in the past: another index holds these rows.
const due State = "due"

// parts splits states by index, in order.
func (f Filter) parts(states []State) []State {
	if i := slices.Index(states, Ready); i >= 0 && f.In != Inbox && len(f.IDs) == 0 {
		return slices.Insert(slices.Clone(states), i, due)
	}
	return states
}

// names returns states for statements.
func names(states []State) []string {
	list := make([]string, len(states))
	for i, s := range states {
		if list[i] = string(s); s == due {
			list[i] = string(Ready)
		}
	}
	return list
}

// stamp formats a time for statements; "" = none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
