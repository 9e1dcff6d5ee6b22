package admin

import (
	"context"
	"maps"
	"slices"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// consumers counts the dead and failing messages of consumers.
func (a *Admin) consumers(ctx context.Context, b bounds) ([]TopicStats, error) {
	byName := map[string]*TopicStats{}
	for _, state := range []State{Dead, Failing} {
		statement := sqltext.CountInboxDead
		if state == Failing {
			statement = sqltext.CountInboxFailing
		}
		err := a.collect(ctx, func(rows drive.Rows) error {
			var name string
			var c Count
			var oldest float64
			var often int64
			err := rows.Scan(&name, &c.N, &c.More, &oldest, &often)
			s := byName[name]
			if s == nil {
				s = &TopicStats{Consumer: name}
				byName[name] = s
			}
			if state == Dead {
				s.Dead = c
			} else {
				s.Failing, s.FailingOften, s.Oldest = c, Count{N: often, More: c.More}, seconds(oldest)
			}
			return err
		}, statement, b.each, b.all)
		if err != nil {
			return nil, err
		}
	}
	list := make([]TopicStats, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		list = append(list, *byName[name])
	}
	return list, nil
}

// queue counts the messages of the queue.
func (a *Admin) queue(ctx context.Context, b bounds) ([]TopicStats, error) {
	t := topicSet{}
	err := a.collect(ctx, func(rows drive.Rows) error {
		var state State
		var topic string
		var c Count
		var oldest float64
		var often int64
		err := rows.Scan(&state, &topic, &c.N, &c.More, &oldest, &often)
		t.add(state, topic, c, oldest, often)
		return err
	}, sqltext.CountQueue, b.each)
	if text.SQLState(err) == text.UndefinedTable { // the database is at an older migration, without this table
		return t.sorted(), nil
	}
	if err == nil && t.partly() && b.budget > 0 {
		err = a.estimate(ctx, t, sqltext.QueuePages, sqltext.SampleQueue)
	}
	if err == nil {
		err = a.rates(ctx, t, sqltext.QueueRates)
	}
	return t.sorted(), err
}
