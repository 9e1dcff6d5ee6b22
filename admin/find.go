package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// maxFind is the length of what Find looks for: the longest name that a message has, and room for its consumer.
const maxFind = 4096

// Find looks for messages in all tables by what is known of them: the UUID, the id that Message.ID has, or the
// ordering key. Of a UUID it also finds the dead letter that is still in the outbox. Inbox and queue come first, since
// they are asked by index; then the outbox, newest first, and the queue once more for the key.
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

func (a *Admin) find(ctx context.Context, what string, at cursor, limit int) (*List, error) {
	l := &List{Messages: []Message{}}
	until := time.Now().Add(lookFor)
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
		list, more, err := a.look(ctx, s, f, []State{""}, cursor{From: at.From}, limit-len(l.Messages), until)
		if err != nil {
			return nil, err
		}
		messages, err := s.show(ctx, list)
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
			l.Looked, err = a.looked(ctx, f.In, "", more.From)
			return l, err
		}
	}
	return l, nil
}
