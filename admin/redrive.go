package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

var redrive = Verb{
	Name: "redrive", Past: "Redriven", States: map[Table][]State{Inbox: {Dead}}, Does: map[Table]string{
		Inbox: "They are published again from their dead letters, to their original topics, and handled once. Other " +
			"consumers receive them too, and their inboxes skip duplicates. Messages whose dead letter was deleted stay " +
			"dead.",
	},
}

// Redrive publishes the original messages of dead letters again, to the topics that they were consumed from and under
// their UUIDs, and requeues them in the inbox in the same transaction. Their consumers handle them once, even if the
// broker redelivers them too. Other consumers of these topics receive a copy, which their inboxes skip.
//
// The dead letters must be in the outbox: Result.NoDeadLetter counts messages whose dead letters were deleted, and if
// none is left, Redrive returns ErrNoDeadLetter. A dead letter whose topic is a pattern with wildcards is refused. The
// messages count their redrives in metadata outbox_redriven; metadata that the dead letter stores under another name
// keeps that name.
func (a *Admin) Redrive(ctx context.Context, act Action) (Result, error) {
	r, err := a.run(ctx, redrive, act)
	if err == nil && r.Matched.N == 0 && r.NoDeadLetter > 0 {
		err = fmt.Errorf("%s: %w", redrive.Name, ErrNoDeadLetter)
	}
	return r, err
}

// withDeadLetters returns the messages of the inbox whose dead letters are in the outbox, and records their ids.
func (d *doing) withDeadLetters(ctx context.Context, places []place) (with []place, err error) {
	list, err := d.source.show(ctx, places)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(m Message) bool { return m.DeadAt.IsZero() }) // requeued meanwhile
	d.deadLetters = map[digest]int64{}
	dead := make(map[digest]bool, len(list))
	for _, m := range list {
		dead[place{Owner: m.Consumer, Name: m.UUID}.digest()] = true
	}
	slices.SortFunc(list, func(x, y Message) int { return x.DeadAt.Compare(y.DeadAt) })
	for from := 0; from < len(list); { // messages that died close together share a search
		to := from + 1
		for to < len(list) && list[to].DeadAt.Sub(list[to-1].DeadAt) < deadLetterWithin {
			to++
		}
		if err := d.findDeadLetters(ctx, list[from:to]); err != nil {
			return nil, err
		}
		from = to
	}
	for _, p := range places {
		switch {
		case int64(len(with)) == d.left:
			return with, nil
		case d.deadLetters[p.digest()] != 0:
			with = append(with, p)
		case dead[p.digest()]:
			d.result.NoDeadLetter++
		}
	}
	return with, nil
}

// notPattern returns an error if one of the redriven messages goes to a topic that is a pattern.
func (d *doing) notPattern(ctx context.Context, places []place) (err error) {
	_, ids := arrays(places)
	found := d.collect(ctx, func(rows drive.Rows) error {
		var id int64
		var topic string
		scanned := rows.Scan(&id, &topic)
		err = isPattern(fmt.Sprintf("message %d", id), topic)
		return scanned
	}, sqltext.RedrivenPattern, ids)
	return cmp.Or(found, err)
}

func isPattern(which, topic string) error {
	return invalid("admin: %s was consumed from the pattern %q, which cannot be published to: leave it out of the "+
		"filter, or discard it and publish its payload to its original topic", which, topic)
}

// findDeadLetters searches for dead letters written between shortly before the first death and shortly after the last.
func (d *doing) findDeadLetters(ctx context.Context, dead []Message) error {
	from, err := d.writtenFrom(ctx, dead[0].DeadAt.Add(-deadLetterWithin))
	if err != nil {
		return err
	}
	to, err := d.writtenFrom(ctx, dead[len(dead)-1].DeadAt.Add(deadLetterWithin))
	if err != nil {
		return err
	}
	consumers, ids, died := make([]string, len(dead)), make([]string, len(dead)), map[digest]time.Time{}
	for i, m := range dead {
		consumers[i], ids[i] = m.Consumer, m.UUID
		died[place{Owner: m.Consumer, Name: m.UUID}.digest()] = m.DeadAt
	}
	for ; from <= to && err == nil; from += matchingStep {
		err = d.collect(ctx, func(rows drive.Rows) error {
			var id int64
			var p place
			var written time.Time
			var topic string
			err := rows.Scan(&id, &p.Owner, &p.Name, &written, &topic)
			// The message may have died earlier, too, and been requeued.
			if off := written.Sub(died[p.digest()]); err == nil && off.Abs() < deadLetterWithin {
				d.deadLetters[p.digest()] = id
				if core.IsPattern(topic) {
					err = isPattern(fmt.Sprintf("message %q of %s", p.Name, p.Owner), topic)
				}
			}
			return err
		}, sqltext.DeadLettersOf, from, min(to, from+matchingStep-1), consumers, ids)
	}
	return err
}
