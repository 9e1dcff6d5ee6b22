package forwarder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/idle"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/scheduler"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// asked is a database to poll, and which of its topics.
type asked struct {
	d      *database
	number int64
	all    bool // poll everything
	topics []string
}

// poll polls sleeping databases of one connection pool.
func (g *Group) poll(ctx context.Context, databases []*database) error {
	list, failing, number := g.toPoll(databases, time.Now())
	err := g.pollMany(ctx, list[:len(list)-failing])
	if text.SQLState(err) != "" && !timedOut(err) {
		err = nil // the server has answered, so one of the databases is the cause, and its own poll names it
	}
	for i := 0; i < len(list) && err == nil && ctx.Err() == nil; i++ {
		a := list[i]
		if a.d == nil {
			continue
		}
		err = g.pollOne(ctx, a, number)
		if len(list) > 1 && timedOut(err) { // the server has just answered for all of them: a lock holds this one up
			g.pollFailed(a.d, number, err)
			err = nil
			break // the next poll asks the server again before it waits for another lock
		}
	}
	if err == nil || ctx.Err() != nil {
		return nil
	}
	if errors.Is(err, errStandby) { // other connections may lead to the primary
		databases[0].DB().Reset()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range databases {
		if d.Asleep() {
			d.answerBefore(number, err)
		}
	}
	return err
}

// toPoll returns the databases to poll now, last the ones whose previous poll failed; how many these are; and the number
// of the poll.
func (g *Group) toPoll(databases []*database, now time.Time) (list []asked, failing int, number int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.polls++
	var failed []asked
	for _, d := range databases {
		drains := len(d.drains) > 0
		if d.Asleep() && (drains || !now.Before(d.pollAt)) {
			number, known := d.idle.Number()
			a := asked{d, number, !known || drains || !now.Before(d.allAt), d.topics}
			if d.breaker.Failing() {
				failed = append(failed, a)
			} else {
				list = append(list, a)
			}
		}
	}
	return append(list, failed...), len(failed), g.polls
}

// pollMany removes from a list the databases for which a single cheap statement shows nothing new.
func (g *Group) pollMany(ctx context.Context, list []asked) error {
	for len(list) > 1 {
		some := list[:min(len(list), manyPolls)]
		list = list[len(some):]
		names := make([]string, len(some))
		for i, a := range some {
			names[i] = a.d.DB().Render("{outbox_id_seq}")
		}
		ctx, cancel := context.WithTimeout(ctx, g.cfg.Forwarder.QueryTimeout)
		i := 0
		err := drive.Collect(ctx, some[0].d.DB(), func(rows drive.Rows) error {
			var number int64
			err := rows.Scan(&number)
			if a := &some[i]; number == a.number && !a.all {
				a.d = nil
			}
			i++
			return err
		}, sqltext.PollOutboxes, names)
		cancel()
		if err != nil {
			return fmt.Errorf("poll %d outboxes: %w", len(some), err)
		}
	}
	return nil
}

// pollOne polls one database. It returns an error only if the whole server may be affected, not the database alone.
func (g *Group) pollOne(ctx context.Context, a asked, number int64) error {
	d := a.d
	begun := time.Now()
	l := idle.Poll{All: a.all, Due: -1}
	standby := false
	queryCtx, cancel := context.WithTimeout(ctx, g.cfg.Forwarder.QueryTimeout)
	defer cancel()
	err := drive.Collect(queryCtx, d.DB(), func(rows drive.Rows) error {
		var due *float64
		err := rows.Scan(&l.Number, &l.Oldest, &l.Next, &standby, &l.Ready, &due)
		if due != nil {
			l.Due = time.Duration(min(max(*due, 0), 1e6) * float64(time.Second))
		}
		return err
	}, d.DB().Render(sqltext.PollOutbox), a.number, a.all, topicsArg(a.topics))
	if standby && err == nil {
		err = errStandby
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		g.polled(a, l, number, time.Since(begun))
		return nil
	case text.SQLState(err) == "" || timedOut(err) || errors.Is(err, errStandby):
		return fmt.Errorf("poll the outbox: %w", err)
	}
	g.pollFailed(d, number, fmt.Errorf("poll the outbox: %w", text.Explain(err)))
	return nil
}

// pollFailed skips a database that could not be polled, and answers the calls of Drain that wait for it. If it was
// woken in the meantime, its forwarder answers them.
func (g *Group) pollFailed(d *database, number int64, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !d.Asleep() {
		return
	}
	d.answerBefore(number, err)
	g.broken(d, err, time.Now())
}

// polled applies the result of a poll.
func (g *Group) polled(a asked, l idle.Poll, number int64, took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d, now := a.d, time.Now()
	if !d.Asleep() {
		return // it was woken or removed in the meantime
	}
	work := d.idle.Polled(l)
	var rest time.Duration // slow polls may use about a twentieth of the time
	if l.All {
		rest = d.ofAll.Rest(took)
		d.allAt = now.Add(max(scheduler.Jitter(pollAllInterval), rest))
	} else {
		rest = d.ofOne.Rest(took)
	}
	d.pollAt = now.Add(rest - g.cfg.IdlePollInterval)
	if l.All || l.Number != a.number {
		if d.dueAt = (time.Time{}); l.Due >= 0 {
			d.dueAt = now.Add(l.Due)
		}
		g.setWakeAt(d)
	}
	if work {
		g.scheduler.Wake(d.Database)
	} else {
		d.answerBefore(number, nil)
	}
}
