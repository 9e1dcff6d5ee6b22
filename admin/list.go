package admin

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	defaultPage = 50
	maxPage     = 1000
	// searchTime is how long a call searches for matching messages before it returns the ones found so far.
	searchTime = time.Second
)

// List returns a page of messages, without payloads. With Filter.States it lists one state after another: dead and
// settled messages newest first, delayed messages in the order of their due times, others oldest first; inbox and queue
// by consumer or source, then oldest first. Without states it lists all messages, in the outbox newest first.
//
// It searches for about a second, so a page may be short or empty although there are more messages: see List.Next and
// List.Progress.
func (a *Admin) List(ctx context.Context, f Filter, p Page) (*List, error) {
	s, states, err := a.prepare(f)
	if err != nil {
		return nil, err
	}
	if p.Limit < 0 || p.Limit > maxPage {
		return nil, invalid("admin: Page.Limit is %d: use 1 to %d, or 0 for %d", p.Limit, maxPage, defaultPage)
	}
	if p.Limit == 0 {
		p.Limit = defaultPage
	}
	at, err := parseCursor(p.After)
	if err != nil {
		return nil, err
	}
	states = f.parts(states)
	list, more, err := a.search(ctx, s, f, states, at, p.Limit, time.Now().Add(searchTime))
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	l := &List{}
	if more != nil {
		l.Next = more.String()
		if l.Progress, err = a.progress(ctx, f.In, states[more.Done], more.From); err != nil {
			return nil, fmt.Errorf("list: %w", err)
		}
	}
	if l.Messages, err = s.show(ctx, list); err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return l, nil
}

// progress returns how far a walk has come.
func (a *Admin) progress(ctx context.Context, in Table, state State, at *place) (l Progress, err error) {
	if *at == (place{}) {
		return l, nil
	}
	if l.ID = at.id(); in != Outbox {
		return l, nil
	}
	var first, last int64
	var written sql.NullTime
	err = a.collect(ctx, func(rows drive.Rows) error { return rows.Scan(&first, &last, &written) }, sqltext.OutboxProgress,
		at.ID)
	l.WrittenAt = written.Time
	all := float64(last-first) + 1
	switch {
	case state == Delayed || state == due || at.ID < first || at.ID > last: // or it was deleted meanwhile
	case state == Ready || state == Failing:
		l.Share = float64(at.ID-first+1) / all
	default:
		l.Share = float64(last-at.ID+1) / all
	}
	return l, err
}

// search returns the messages of a page, and the start of the next page; nil at the end.
func (a *Admin) search(
	ctx context.Context, s store, f Filter, states []State, at cursor, limit int, until time.Time,
) (list []place, more *cursor, err error) {
	stepped := false // at least one step, so that each call makes progress
	for ; at.Done < len(states); at = (cursor{Done: at.Done + 1}) {
		w := newWalk(f, states[at.Done])
		w.newest = true
		if w.first > laneStep {
			w.batch = max(w.batch, int64(limit)+1)
		}
		if at.From != nil {
			w.from = at.From
		}
		for w.from != nil {
			if len(list) == limit || stepped && time.Now().After(until) {
				return list, &cursor{at.Done, w.from}, nil
			}
			stepped = true
			w.want = limit - len(list)
			if f.ErrorGroup != "" {
				w.want = maxStep
			}
			page, err := w.next(ctx, s)
			if err != nil {
				return nil, nil, err
			}
			for _, m := range page {
				if len(list) == limit {
					return list, &cursor{at.Done, &list[limit-1]}, nil
				}
				list = append(list, m.place)
			}
		}
	}
	return list, nil, nil
}

// Get returns a message with its payload, or without it if the role may not read payloads. It returns ErrNotFound for
// an unknown message.
func (a *Admin) Get(ctx context.Context, t Table, id string) (*Message, error) {
	s, err := a.store(t)
	if err != nil {
		return nil, err
	}
	places, err := s.places([]string{id})
	if err != nil {
		return nil, err
	}
	list, err := s.show(ctx, places)
	if err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: %s %q", ErrNotFound, t, id)
	}
	m := &list[0]
	if m.Payload, err = s.payload(ctx, places[0]); err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	m.Bytes = len(m.Payload)
	return m, nil
}
