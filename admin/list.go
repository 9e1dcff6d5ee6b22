package admin

import (
	"context"
	"fmt"
	"time"
)

const (
	defaultPage = 50
	maxPage     = 1000
	// lookFor is how long List goes on looking for messages that fit before it returns what it has.
	lookFor = 100 * time.Millisecond
)

// List returns a page of messages, without payloads. With Filter.States it lists one state after another: dead and
// settled messages newest first, delayed ones in the order in which they fall due, others oldest first; in the inbox
// and the queue by consumer or source and then oldest first. Without, it lists all messages, newest first in the
// outbox.
//
// It looks at no more messages than it can in about a tenth of a second, so a page may be short although there are
// more: List.Next tells. It returns errors that name the field at fault, and those of the database.
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
	list, more, err := a.look(ctx, s, f, states, at, p.Limit)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	l := &List{}
	if more != nil {
		l.Next = more.String()
	}
	if l.Messages, err = s.show(ctx, list); err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return l, nil
}

// look returns what is on a page, and where the next one starts; nil at the end.
func (a *Admin) look(
	ctx context.Context, s source, f Filter, states []State, at cursor, limit int,
) (list []place, more *cursor, err error) {
	begun := time.Now()
	for ; at.Done < len(states); at = (cursor{Done: at.Done + 1}) {
		w := newWalk(f, states[at.Done])
		w.newest = true
		if w.first > laneLook {
			w.look = max(w.look, int64(limit)+1)
		}
		if at.From != nil {
			w.from = at.From
		}
		for w.from != nil {
			if len(list) == limit || time.Since(begun) > lookFor {
				return list, &cursor{at.Done, w.from}, nil
			}
			w.want = limit - len(list)
			if f.ErrorGroup != "" {
				w.want = maxLook
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

// Get returns one message with its payload, or without if the role may not read payloads. It returns ErrNotFound if
// there is no such message.
func (a *Admin) Get(ctx context.Context, t Table, id string) (*Message, error) {
	s, err := a.source(t)
	if err != nil {
		return nil, err
	}
	p, err := s.place(id)
	if err != nil {
		return nil, err
	}
	list, err := s.show(ctx, []place{p})
	if err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: %s %q", ErrNotFound, t, id)
	}
	m := &list[0]
	if m.Payload, err = s.payload(ctx, p); err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	m.Bytes = len(m.Payload)
	return m, nil
}
