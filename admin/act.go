package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Act says what an act is done to, by whom and why.
type Act struct {
	Filter Filter
	// Limit is how many messages are changed at most; default: all that the filter means.
	Limit int
	// Reason goes into the audit log, up to 1 KiB. Discard and SkipHead keep it with the message too, so they need one.
	Reason string
	// Actor is who does it; default Config.Actor.
	Actor string
	// DryRun counts what the act would change, up to 10,000 or Limit, and changes nothing.
	DryRun bool
	// Progress, if not nil, is called after each batch, with what was done so far.
	Progress func(ctx context.Context, r Result)
}

// Result says what an act did, also before an error.
type Result struct {
	// Matched is how many messages the filter meant: of a dry run at most as many as it counts, else those that the act came by.
	Matched Count `json:"matched"`
	// Touched is how many were changed.
	Touched int64 `json:"touched"`
	// Skipped is how many were not, because somebody else had locked or changed them meanwhile. Act again to have them.
	Skipped int64 `json:"skipped"`
	// Compared is how many messages Reconcile has looked for in the log.
	Compared int64 `json:"compared,omitempty"`
	// AuditID is the entry in the audit log; 0 for a dry run.
	AuditID int64 `json:"audit_id,omitempty"`
}

// dryCount is how far a dry run counts.
const dryCount = 10_000

// verb is one kind of act.
type verb struct {
	name    string            // in the audit log
	states  map[Table][]State // that it may change, its default first; tables that are missing it is not for
	reason  string            // how the error text begins that it leaves, which then needs a reason; "" = it leaves none
	oneEach bool              // only the first message of each key
}

// run does an act: first the entry in the audit log, then one batch after another, oldest messages first, each counted
// in that entry by the statement that changes it.
func (a *Admin) run(ctx context.Context, v verb, act Act) (r Result, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", v.name, err)
		}
	}()
	s, states, err := a.check(v, &act)
	if err != nil {
		return r, err
	}
	d := doing{Admin: a, verb: v, act: act, source: s, result: &r, upto: math.MaxInt64, left: int64(act.Limit)}
	if act.Limit == 0 {
		d.left = 1 << 62
	}
	if act.DryRun {
		return r, d.count(ctx, states)
	}
	if d.upto, err = s.end(ctx); err != nil {
		return r, err
	}
	if r.AuditID, err = a.begin(ctx, v.name, act); err != nil {
		return r, err
	}
	if f := &d.act.Filter; f.In == Queue && f.Before.IsZero() { // its ids are no numbers: what is stored meanwhile is told by its time
		if err := a.collect(ctx, func(rows drive.Rows) error { return rows.Scan(&f.Before) }, sqltext.Now); err != nil {
			return r, err
		}
	}
	for _, state := range states {
		if err := d.all(ctx, state); err != nil {
			return r, err
		}
	}
	a.logger.Info("Done by an operator", watermill.LogFields{
		"action": v.name, "actor": act.Actor, "touched": r.Touched, "skipped": r.Skipped, "audit_id": r.AuditID,
	})
	return r, a.end(ctx, r.AuditID)
}

// check refuses acts that are not meant, and returns the states that the act is for.
func (a *Admin) check(v verb, act *Act) (source, []State, error) {
	f := act.Filter
	s, _, err := a.prepare(f)
	if err != nil {
		return nil, nil, err
	}
	may := v.states[f.In]
	if len(may) == 0 {
		return nil, nil, invalid("admin: it is not for the %s", f.In)
	}
	states := f.States
	if len(states) == 0 {
		states = may[:1]
	}
	for _, state := range states {
		if !slices.Contains(may, state) {
			return nil, nil, invalid("admin: Filter.States has %q: it changes messages that are one of %v", state, may)
		}
	}
	if v.oneEach && len(states) > 1 {
		return nil, nil, invalid("admin: Filter.States has %v: name the one that blocks the keys", states)
	}
	if i := slices.Index(states, Failing); i > 0 { // first, so that what becomes failing by the act is not met again
		states = slices.Concat([]State{Failing}, states[:i], states[i+1:])
	}
	bound := len(f.IDs) > 0 || f.Topic+f.Key+f.Consumer+f.ErrorGroup+f.ErrorContains != "" || !f.After.IsZero() || !f.Before.IsZero()
	if act.Actor, err = a.actor(act.Actor, act.Reason); err != nil && !act.DryRun {
		return nil, nil, err
	}
	switch {
	case !bound && !f.All:
		return nil, nil, ErrUnbound
	case act.Limit < 0:
		return nil, nil, invalid("admin: Act.Limit is %d: use the number of messages, or 0 for all", act.Limit)
	case v.reason != "" && act.Reason == "" && !act.DryRun:
		return nil, nil, invalid("admin: Act.Reason is missing: it is kept with the messages")
	}
	return s, states, nil
}

// actor says who acts.
func (a *Admin) actor(actor, reason string) (string, error) {
	if actor == "" {
		actor = a.cfg.Actor
	}
	switch {
	case actor == "":
		return "", ErrNoActor
	case len(actor) > maxActorBytes || !text.Storable(actor):
		return "", invalid("admin: Actor must be UTF-8 without NUL, of at most %d bytes", maxActorBytes)
	case len(reason) > maxReasonBytes || !text.Storable(reason):
		return "", invalid("admin: Reason must be UTF-8 without NUL, of at most %d bytes", maxReasonBytes)
	}
	return actor, nil
}

// begin writes the entry of an act into the audit log.
func (a *Admin) begin(ctx context.Context, action string, act Act) (id int64, err error) {
	filter, err := json.Marshal(act.Filter)
	if err != nil {
		return 0, err
	}
	return a.number(ctx, sqltext.BeginAct, act.Actor, action, act.Reason, string(filter))
}

func (a *Admin) end(ctx context.Context, audit int64) error {
	return a.exec(ctx, sqltext.EndAct, audit)
}

// doing is one act while it is done.
type doing struct {
	*Admin
	verb   verb
	act    Act
	source source
	result *Result
	keys   map[string]int64 // the first message of each key that was met, if that alone is meant
	upto   int64            // what is written meanwhile is not meant
	left   int64            // how many may still be changed
}

// walk goes through the messages among which those are that the act means.
func (d *doing) walk(state State) *walk {
	f := d.act.Filter
	if d.verb.oneEach { // what does not fit may be first of its key
		f = Filter{In: f.In, Key: f.Key}
	}
	w := newWalk(f, state)
	w.upto = d.upto
	return w
}

// all changes all messages of one state.
func (d *doing) all(ctx context.Context, state State) error {
	for w := d.walk(state); w.from != nil && d.left > 0; {
		batch, err := d.next(ctx, w)
		if err != nil {
			return err
		}
		if len(batch) == 0 {
			continue
		}
		if err := d.change(ctx, state, batch); err != nil {
			return err
		}
	}
	return nil
}

// change changes one batch.
func (d *doing) change(ctx context.Context, state State, batch []place) error {
	n, err := d.source.change(ctx, d, state, batch)
	d.result.Matched.N += int64(len(batch))
	d.result.Touched += n
	if err != nil {
		return err
	}
	d.result.Skipped += int64(len(batch)) - n
	d.left -= n
	d.db.Wake()
	if d.act.Progress != nil {
		d.act.Progress(ctx, *d.result)
	}
	return nil
}

// next returns the next messages to change. There may be none, with more to come.
func (d *doing) next(ctx context.Context, w *walk) ([]place, error) {
	if d.verb.oneEach {
		w.want = d.cfg.BatchSize
		found, err := w.next(ctx, d.source)
		if err != nil {
			return nil, err
		}
		heads, err := d.heads(ctx, w, found)
		return heads[:min(int64(len(heads)), d.left)], err
	}
	w.want = int(min(int64(d.cfg.BatchSize), d.left))
	found, err := w.next(ctx, d.source)
	return placesOf(found), err
}

// count counts what an act would change.
func (d *doing) count(ctx context.Context, states []State) error {
	most := min(d.left, dryCount)
	for _, state := range states {
		for w := d.walk(state); w.from != nil; {
			batch, err := d.next(ctx, w)
			if err != nil {
				return err
			}
			d.result.Matched.N += int64(len(batch))
			if d.result.Matched.N >= most {
				d.result.Matched = Count{N: most, More: true}
				return nil
			}
		}
	}
	return nil
}

// note is the error text that the act leaves with a message; "" = it leaves that as it is.
func (d *doing) note() string {
	if d.verb.reason == "" {
		return ""
	}
	return d.verb.reason + " by " + d.act.Actor + ": " + d.act.Reason
}
