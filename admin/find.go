package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// maxFind is the largest size of the text that Find takes: the longest name of a message, and its consumer.
const maxFind = 4096

// Find searches all tables for messages with a UUID, an id (Message.ID) or an ordering key. For a UUID it also finds
// the dead letter in the outbox. It searches inbox and queue by index first, then the outbox, newest first.
//
// The outbox has no index by UUID, so Find searches for about a second and returns the messages found, how far the
// search got (List.Progress), and where to continue (List.Next).
func (a *Admin) Find(ctx context.Context, what string, p Page) (*List, error) {
	if p.Limit < 0 || p.Limit > maxPage {
		return nil, invalid("admin: Page.Limit is %d: use 1 to %d, or 0 for %d", p.Limit, maxPage, defaultPage)
	}
	if p.Limit == 0 {
		p.Limit = defaultPage
	}
	if what == "" || len(what) > maxFind || !text.Storable(what) {
		return nil, invalid("admin: the text to find must be UTF-8 without NUL, of 1 to %d bytes", maxFind)
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

func (a *Admin) find(ctx context.Context, what string, at cursor, limit int) (*List, error) {
	l := &List{Messages: []Message{}}
	until := time.Now().Add(searchTime)
	for steps := a.findSteps(what); at.Done < len(steps); at = (cursor{Done: at.Done + 1}) {
		if len(l.Messages) >= limit {
			l.Next = at.String()
			return l, nil
		}
		f := steps[at.Done]
		s, err := a.store(f.In)
		if err != nil {
			return nil, err
		}
		list, more, err := a.search(ctx, s, f, []State{""}, cursor{From: at.From}, limit-len(l.Messages), until)
		if err != nil {
			return nil, err
		}
		messages, err := s.show(ctx, list)
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			// A message may have the text as its id, UUID and key. Then an earlier step found it, perhaps on an earlier page.
			before := f.Key != "" && m.UUID == what || slices.ContainsFunc(steps[:at.Done], func(e Filter) bool {
				return e.In == m.In && slices.Contains(e.IDs, m.ID)
			})
			if !before {
				l.Messages = append(l.Messages, m)
			}
		}
		if more != nil {
			l.Next = cursor{at.Done, more.From}.String()
			l.Progress, err = a.progress(ctx, f.In, "", more.From)
			return l, err
		}
	}
	return l, nil
}
