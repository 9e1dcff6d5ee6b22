package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// maxFind is the length of what Find looks for: the longest name that a message has, and room for its consumer.
const maxFind = 4096

// Find looks for messages in all tables by what is known of them: the UUID, the id that Message.ID has, or the
// ordering key. Of a UUID it also finds the dead letter that is still in the outbox. Inbox and queue come first, since
// they are asked by index; then the outbox, newest first, and the queue once more for the key. What a subscriber has
// parked is not found, as only the program that parked it can read its UUID: see ParkedKeys.
//
// No index has the outbox by UUID, as writers would pay for it. So Find looks for about a second and returns what it
// has found, how far it came (List.Looked), and where to go on (List.Next). It returns errors that name what is at
// fault, and those of the database.
func (a *Admin) Find(ctx context.Context, what string, p Page) (*List, error) {
	if p.Limit < 0 || p.Limit > maxPage {
		return nil, invalid("admin: Page.Limit is %d: use 1 to %d, or 0 for %d", p.Limit, maxPage, defaultPage)
	}
	if p.Limit == 0 {
		p.Limit = defaultPage
	}
	if what == "" || len(what) > maxFind || !text.Storable(what) {
		return nil, invalid("admin: what Find looks for must be UTF-8 without NUL, of 1 to %d bytes", maxFind)
	}
	at, err := parseCursor(p.After)
	if err != nil {
		return nil, err
	}
	l, err := a.find(ctx, what, at, p.Limit)
	if err != nil {
		return nil, fmt.Errorf("find: %w", err)
	}
	return l, nil
}

// findStep is a place where Find looks.
type findStep struct {
	source source
	filter Filter
}

// findSteps are all such places, those first where the answer is quick.
func (a *Admin) findSteps(what string) []findStep {
	ids := []string{what}
	steps := []findStep{
		{findOutbox{outboxTable{a}, what, true}, Filter{IDs: ids}},
		{findInbox{inboxTable{a}, what, true}, Filter{In: Inbox, IDs: ids}},
		{findQueue{queueTable{a}, what, true}, Filter{In: Queue, IDs: ids}},
		{findInbox{inboxTable{a}, what, false}, Filter{In: Inbox}},
		{findQueue{queueTable{a}, what, false}, Filter{In: Queue}},
		{findOutbox{outboxTable{a}, what, false}, Filter{}},
		{queueTable{a}, Filter{In: Queue, Key: what}},
	}
	return steps
}

func (a *Admin) find(ctx context.Context, what string, at cursor, limit int) (*List, error) {
	l := &List{Messages: []Message{}}
	until := time.Now().Add(lookFor)
	for steps := a.findSteps(what); at.Done < len(steps); at = (cursor{Done: at.Done + 1}) {
		if len(l.Messages) >= limit {
			l.Next = at.String()
			return l, nil
		}
		s := steps[at.Done]
		list, more, err := a.look(ctx, s.source, s.filter, []State{""}, cursor{From: at.From}, limit-len(l.Messages), until)
		if err != nil {
			return nil, err
		}
		messages, err := s.source.show(ctx, list)
		if err != nil {
			return nil, err
		}
		for _, m := range messages { // the id of one may be the key of another
			if !slices.ContainsFunc(l.Messages, func(known Message) bool { return known.In == m.In && known.ID == m.ID }) {
				l.Messages = append(l.Messages, m)
			}
		}
		if more != nil {
			l.Next = cursor{at.Done, more.From}.String()
			l.Looked, err = a.looked(ctx, s.filter.In, "", more.From)
			return l, err
		}
	}
	return l, nil
}

// findOutbox, findInbox and findQueue are tables that are searched: for a message whose ID is given, if that can be
// one, or for what is named otherwise.
type (
	findOutbox struct {
		outboxTable
		what string
		byID bool
	}
	findInbox struct {
		inboxTable
		what string
		byID bool
	}
	findQueue struct {
		queueTable
		what string
		byID bool
	}
)

func (o findOutbox) step(ctx context.Context, w *walk) ([]found, *place, error) {
	if o.byID {
		if _, err := strconv.ParseInt(o.what, 10, 64); err != nil {
			return nil, nil, nil
		}
		return o.outboxTable.step(ctx, w)
	}
	from := w.from.ID
	if *w.from == (place{}) {
		from = math.MaxInt64
	}
	return o.walked(ctx, w.want, func(m *found) []any { return []any{&m.ID, &m.At, &m.key, &m.err} }, sqltext.FindOutbox,
		o.what, from, w.look, int64(w.want))
}

func (t findInbox) step(ctx context.Context, w *walk) ([]found, *place, error) {
	if t.byID {
		if _, _, err := splitID(t.what); err != nil {
			return nil, nil, nil
		}
		return t.inboxTable.step(ctx, w)
	}
	return t.walked(ctx, maxLook, func(m *found) []any { return []any{&m.Owner, &m.At, &m.Name, &m.err} },
		sqltext.FindInbox, t.what, w.from.Owner, int64(ownersLook))
}

func (t findQueue) step(ctx context.Context, w *walk) ([]found, *place, error) {
	if t.byID {
		if _, _, err := splitID(t.what); err != nil {
			return nil, nil, nil
		}
		return t.queueTable.step(ctx, w)
	}
	return t.walked(ctx, maxLook, func(m *found) []any { return []any{&m.ID, &m.At, &m.Owner, &m.Name, &m.err} },
		sqltext.FindQueue, t.what, w.from.Owner, int64(ownersLook))
}

// ownersLook is how many consumers or sources a step asks: each is one way down an index.
const ownersLook = 1000
