package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Action selects the messages to act on, and gives the reason.
type Action struct {
	Filter Filter
	// Limit is the maximum number of messages to change; default: all that the filter selects.
	Limit int
	// Reason is stored in the audit log, up to 1 KiB. Discard and Skip also store it with the message and require
	// it.
	Reason string
	// DryRun counts the messages that the act would change, up to 10,000 or Limit, and changes nothing.
	DryRun bool
	// Preview is the Result.Preview of a dry run with the same filter. Then only the messages that it counted are
	// changed; messages settled since are skipped. Default: the messages that the filter selects when the act begins.
	Preview string
	// Progress, if not nil, is called after each batch with the result so far.
	Progress func(ctx context.Context, r Result)
}

// Result is the result of an act. It is valid even with an error: then it has the changes made so far.
type Result struct {
	// Matched is the number of messages that the filter selected; a dry run counts up to its limit.
	Matched Count `json:"matched"`
	// Touched is the number of messages changed.
	Touched int64 `json:"touched"`
	// Skipped is the number of messages that another session had locked or changed. Requeue, Replay and Reconcile also
	// skip the messages behind or before them under the same key. Act again to change them.
	Skipped int64 `json:"skipped"`
	// Preview identifies the messages that a dry run counted. Pass it to Action.Preview to change only these. If there are
	// more messages than a dry run counts, it selects those written before the dry run. It is up to 220 kB long.
	Preview string `json:"-"`
	// NoDeadLetter is the number of messages that Redrive skipped because their dead letter is no longer in the outbox.
	NoDeadLetter int64 `json:"no_dead_letter,omitempty"`
	// Compared is the number of messages that Reconcile compared.
	Compared int64 `json:"compared,omitempty"`
	// AuditID is the entry in the audit log; 0 for a dry run.
	AuditID int64 `json:"audit_id,omitempty"`
}

// dryCount is the largest number of messages that a dry run counts.
const dryCount = 10_000

// run performs an act: it first writes the entry in the audit log, then changes one batch after another, oldest
// messages first. The statement that changes a batch also counts it in that entry.
func (a *Admin) run(ctx context.Context, v Verb, act Action) (r Result, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", v.Name, err)
		}
	}()
	s, states, err := a.check(v, &act)
	if err != nil {
		return r, err
	}
	d, err := a.doing(ctx, v, act, s, &r)
	if err != nil {
		return r, err
	}
	if act.DryRun {
		return r, d.count(ctx, states)
	}
	if r.AuditID, err = a.begin(ctx, v.Name, act); err != nil {
		return r, err
	}
	for _, t := range d.together(states) {
		if err := d.all(ctx, t); err != nil {
			return r, a.end(ctx, r.AuditID, err)
		}
	}
	a.logger.Info("operator act", watermill.LogFields{
		"action": v.Name, "actor": a.cfg.Actor, "touched": r.Touched, "skipped": r.Skipped, "audit_id": r.AuditID,
	})
	return r, a.end(ctx, r.AuditID, nil)
}

// check refuses acts that are incomplete, and returns the states to act on.
func (a *Admin) check(v Verb, act *Action) (store, []State, error) {
	f := act.Filter
	s, _, err := a.prepare(f)
	if err != nil {
		return store{}, nil, err
	}
	may := v.States[f.In]
	if len(may) == 0 {
		return store{}, nil, invalid("admin: this act does not apply to the %s", f.In)
	}
	states := f.States
	if len(states) == 0 {
		states = may[:1]
	}
	for _, state := range states {
		if !slices.Contains(may, state) {
			return store{}, nil, invalid("admin: Filter.States has %q: the act applies to messages that are one of "+
				"%v", state, may)
		}
	}
	if v.Heads && len(states) > 1 {
		return store{}, nil, invalid("admin: Filter.States has %v: name the state that blocks the keys", states)
	}
	bound := len(f.IDs) > 0 || f.Topic+f.Key+f.Consumer+f.ErrorGroup+f.ErrorContains != "" || !f.After.IsZero() ||
		!f.Before.IsZero()
	if err := a.recordable(act.Reason); err != nil {
		return store{}, nil, err
	}
	switch {
	case !bound && !f.All:
		return store{}, nil, ErrEmptyFilter
	case act.Limit < 0:
		return store{}, nil, invalid("admin: Action.Limit is %d: use the number of messages, or 0 for all", act.Limit)
	case v.Stored != "" && act.Reason == "" && !act.DryRun:
		return store{}, nil, invalid("admin: Action.Reason is missing: it is stored with the messages")
	}
	return s, states, nil
}

// recordable checks what the audit log stores of an act.
func (a *Admin) recordable(reason string) error {
	switch {
	case a.cfg.Actor == "":
		return ErrNoActor
	case len(a.cfg.Actor) > text.MaxActorBytes || !text.Storable(a.cfg.Actor):
		return invalid("admin: the actor must be UTF-8 without NUL, of at most %d bytes", text.MaxActorBytes)
	case len(reason) > text.MaxReasonBytes || !text.Storable(reason):
		return invalid("admin: Reason must be UTF-8 without NUL, of at most %d bytes", text.MaxReasonBytes)
	}
	return nil
}

// begin writes the entry of an act into the audit log.
func (a *Admin) begin(ctx context.Context, action string, act Action) (id int64, err error) {
	filter, err := json.Marshal(act.Filter)
	if err != nil {
		return 0, err
	}
	return a.number(ctx, sqltext.BeginAct, a.cfg.Actor, action, act.Reason, string(filter))
}

// endTimeout limits recording the end of an act whose context has ended.
const endTimeout = 5 * time.Second

// end marks the audit entry as ended, with err if it is not nil, and returns the error to report.
func (a *Admin) end(ctx context.Context, audit int64, err error) error {
	if err == nil {
		return a.exec(ctx, sqltext.EndAct, audit, "")
	}
	outcome := text.OfError(err)
	if ctx.Err() != nil {
		outcome = "interrupted: " + text.OfError(ctx.Err())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_ = a.exec(ctx, sqltext.EndAct, audit, outcome) // on failure the entry stays open, as if the process had been killed
	return err
}

// doing is an act in progress.
type doing struct {
	*Admin
	verb   Verb
	act    Action
	source store
	result *Result
	asked  asked
	keys   map[string]int64 // the first message of each key met so far, for acts on first messages only
	left   int64            // how many may still be changed

	deadLetters map[digest]int64 // dead letter ids of the messages met so far

	skipped []string // keys with a skipped message: their order must be kept; never nil
}

// doing begins an act that check accepted.
func (a *Admin) doing(ctx context.Context, v Verb, act Action, s store, r *Result) (d *doing, err error) {
	d = &doing{Admin: a, verb: v, act: act, source: s, result: r, left: int64(act.Limit), skipped: []string{}}
	if act.Limit == 0 {
		d.left = 1 << 62
	}
	if act.Preview != "" {
		d.asked, err = parsePreview(act.Filter.In, act.Preview)
	} else {
		d.asked, err = s.end(ctx)
	}
	if v.Name == retryNow.Name {
		d.asked.met = map[digest]bool{}
	}
	if err == nil && act.DryRun {
		r.Preview = d.asked.tried(act.Filter.In)
	}
	return d, err
}

// walk iterates over candidates for the act in one state.
func (d *doing) walk(state State) *walk {
	f := d.act.Filter
	if d.verb.Heads { // a message that does not match may be the first of its key
		f = Filter{In: f.In, Key: f.Key}
	}
	if at := d.asked.at; f.Before.IsZero() || !at.IsZero() && at.Before(f.Before) {
		f.Before = at
	}
	w := newWalk(f, state)
	w.upto = d.asked.upto
	return w
}

// all changes every message that t finds.
func (d *doing) all(ctx context.Context, t *together) error {
	for !t.ended() && d.left > 0 {
		batch, err := d.next(ctx, t)
		if err != nil {
			return err
		}
		if len(batch) == 0 {
			continue
		}
		if err := d.change(ctx, t.states, batch); err != nil {
			return err
		}
	}
	return nil
}

// change changes one batch.
func (d *doing) change(ctx context.Context, states []State, batch []place) error {
	n, err := d.source.change(ctx, d, states, batch)
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

// next returns the next messages to change. The list may be empty even if more follow.
func (d *doing) next(ctx context.Context, t *together) ([]place, error) {
	if d.verb.Heads {
		found, err := t.next(ctx, d.source, d.cfg.BatchSize)
		if err != nil {
			return nil, err
		}
		heads, err := d.heads(ctx, t.walks[0], found)
		heads = d.asked.of(heads)
		return heads[:min(int64(len(heads)), d.left)], err
	}
	list, err := t.next(ctx, d.source, int(min(int64(d.cfg.BatchSize), d.left)))
	if d.verb.Name != redrive.Name {
		meant := d.asked.of(placesOf(list))
		if err == nil && d.act.Filter.In == Outbox && d.source.sql.Act[d.verb.Name] == "" {
			err = d.notPattern(ctx, meant)
		}
		return meant, err
	}
	// searching for a few dead letters takes as long as for many
	for d.act.DryRun && err == nil && !t.ended() && len(list) < dryCount {
		var more []found
		more, err = t.next(ctx, d.source, dryCount-len(list))
		list = append(list, more...)
	}
	if err != nil {
		return nil, err
	}
	return d.withDeadLetters(ctx, d.asked.of(placesOf(list)))
}

// count counts the messages that an act would change and records them in the preview.
func (d *doing) count(ctx context.Context, states []State) error {
	counted, most := []place{}, min(d.left, dryCount)
	for _, t := range d.together(states) {
		for !t.ended() && int64(len(counted)) < most {
			batch, err := d.next(ctx, t)
			if err != nil {
				return err
			}
			counted = append(counted, batch...)
			d.result.Matched.N = min(int64(len(counted)), most)
			if d.act.Progress != nil {
				d.act.Progress(ctx, *d.result)
			}
		}
	}
	if d.result.Matched.More = d.result.Matched.N == dryCount && d.left > dryCount; !d.result.Matched.More {
		d.tried(counted[:d.result.Matched.N])
	}
	return nil
}

// tried sets Result.Preview to the counted messages.
func (d *doing) tried(counted []place) {
	d.asked.only = make(map[digest]bool, len(counted))
	for _, p := range counted {
		d.asked.only[p.digest()] = true
	}
	d.result.Preview = d.asked.tried(d.act.Filter.In)
}

// storedError is the error text that the act stores with a message; "" keeps the current text.
func (d *doing) storedError() string {
	if d.verb.Stored == "" {
		return ""
	}
	return d.verb.Stored + " by " + d.cfg.Actor + ": " + d.act.Reason
}
