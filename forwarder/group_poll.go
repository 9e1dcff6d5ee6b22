package forwarder

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/idle"
	"github.com/millrace-go/watermill-outbox/internal/drive"
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

// pollServer polls the sleeping databases of a server.
func (g *Group) pollServer(ctx context.Context, s *server, number int64, slow bool) {
	timer := time.AfterFunc(slowPoll, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !slow && s.polling && g.slow < slowPolls {
			slow = true
			g.polls--
			g.slow++
			signal(g.now)
		}
	})
	list := g.sleepers(s, time.Now())
	err := g.pollMany(ctx, list)
	for i := 0; i < len(list) && err == nil && ctx.Err() == nil; i++ {
		if a := list[i]; a.d != nil {
			err = g.pollOne(ctx, a, number)
		}
	}
	timer.Stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	if slow {
		g.slow--
	} else {
		g.polls--
	}
	slow = true // in case the timer is late
	now := time.Now()
	s.polling = false
	s.pollAt = now.Add(jitter(g.cfg.IdlePollInterval))
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.pollAt = now.Add(g.failed(s, list, number, err, now))
	default:
		if s.breaker.Worked() {
			g.logger.Info("polling a database works again", watermill.LogFields{"db": names(s)})
		}
		for d := range s.databases {
			if !d.dueAt.IsZero() && d.dueAt.Before(s.pollAt) {
				s.pollAt = d.dueAt
			}
		}
		if s.again {
			s.pollAt = now
		}
	}
	if len(s.databases) > 0 {
		heap.Push(&g.soonest, s)
	}
	signal(g.now)
}

// names returns the name of one of the server's databases. mu must be held.
func names(s *server) string {
	var first string
	for d := range s.databases {
		if first == "" || d.key < first {
			first = d.key
		}
	}
	if n := len(s.databases); n > 1 {
		return fmt.Sprintf("%s and %d more with the same DSN", first, n-1)
	}
	return first
}

// failed records that the poll of a server failed, and returns how long to wait before the next. mu must be held.
func (g *Group) failed(s *server, list []asked, number int64, err error, now time.Time) time.Duration {
	wait := s.breaker.Failed(now)
	fields := watermill.LogFields{"db": names(s), "wait": wait.String(), "failures": s.breaker.Failures()}
	if s.breaker.Failures() == 1 {
		// Cause: the database.
		// Cure: the Group retries it.
		g.logger.Error("polling a database failed: it is skipped, for longer each time", err, fields)
	} else {
		g.logger.Debug("polling a database still fails", fields.Add(watermill.LogFields{"err": err.Error()}))
	}
	if errors.Is(err, errStandby) { // other connections may lead to the primary
		for d := range s.databases {
			d.db.Reset()
			break
		}
	}
	for d := range s.databases {
		if d.state == asleep {
			d.answerBefore(number, err)
		}
	}
	return wait
}

// sleepers returns the databases to poll, and starts forwarders for those with a due message.
func (g *Group) sleepers(s *server, now time.Time) (list []asked) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for d := range s.databases {
		if d.state != asleep || d.leaving || now.Before(d.pollAt) || d.breaker.Open(now) && len(d.drains) == 0 {
			continue
		}
		due := !d.dueAt.IsZero() && !now.Before(d.dueAt)
		if due || !now.Before(d.tidyAt) {
			d.toTidy = !due
			g.rouse(d, now)
			continue
		}
		number, known := d.idle.Number()
		list = append(list, asked{d, number, !known || !now.Before(d.allAt), d.topics})
	}
	return list
}

// pollMany removes from a list the databases for which a single cheap statement shows nothing new.
func (g *Group) pollMany(ctx context.Context, list []asked) error {
	for len(list) > 1 {
		some := list[:min(len(list), manyPolls)]
		list = list[len(some):]
		names := make([]string, len(some))
		for i, a := range some {
			names[i] = a.d.db.Render("{outbox_id_seq}")
		}
		ctx, cancel := context.WithTimeout(ctx, g.cfg.Forwarder.QueryTimeout)
		i := 0
		err := drive.Collect(ctx, some[0].d.db, func(rows drive.Rows) error {
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

// pollOne polls one database. It returns an error only if the whole server is affected, not the database alone.
func (g *Group) pollOne(ctx context.Context, a asked, number int64) error {
	d := a.d
	begun := time.Now()
	l := idle.Poll{All: a.all, Due: -1}
	standby := false
	queryCtx, cancel := context.WithTimeout(ctx, g.cfg.Forwarder.QueryTimeout)
	defer cancel()
	err := drive.Collect(queryCtx, d.db, func(rows drive.Rows) error {
		var due *float64
		err := rows.Scan(&l.Number, &l.Oldest, &l.Next, &standby, &l.Ready, &due)
		if due != nil {
			l.Due = time.Duration(min(max(*due, 0), 1e6) * float64(time.Second))
		}
		return err
	}, d.db.Render(sqltext.PollOutbox), a.number, a.all, topicsArg(a.topics))
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
	g.mu.Lock()
	defer g.mu.Unlock()
	err = fmt.Errorf("poll the outbox: %w", text.Explain(err))
	g.broken(d, err, time.Now())
	d.answerBefore(number, err)
	return nil
}

// broken skips a database for a while. mu must be held.
func (g *Group) broken(d *database, err error, now time.Time) {
	wait := d.breaker.Failed(now)
	fields := watermill.LogFields{"wait": wait.String(), "failures": d.breaker.Failures()}
	if d.breaker.Failures() == 1 {
		// Cause: one outbox of the Group cannot be read.
		// Cure: the Group retries it.
		d.logger.Error("draining the outbox failed: the database is skipped, for longer each time", err, fields)
	} else {
		d.logger.Debug("draining the outbox still fails", fields.Add(watermill.LogFields{"err": err.Error()}))
	}
}

// polled applies the result of a poll.
func (g *Group) polled(a asked, l idle.Poll, number int64, took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d, now := a.d, time.Now()
	if d.state != asleep {
		return // it was woken in the meantime
	}
	work := d.idle.Polled(l)
	var rest time.Duration // slow polls may use about a twentieth of the time
	if l.All {
		rest = d.ofAll.Rest(took)
		d.allAt = now.Add(max(jitter(pollAllInterval), rest))
	} else {
		rest = d.ofOne.Rest(took)
	}
	d.pollAt = now.Add(rest - g.cfg.IdlePollInterval)
	if l.All || l.Number != a.number {
		if d.dueAt = (time.Time{}); l.Due >= 0 {
			d.dueAt = now.Add(l.Due)
		}
	}
	if work {
		g.rouse(d, now)
	} else {
		d.answerBefore(number, nil)
	}
}
