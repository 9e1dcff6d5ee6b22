package admin

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// StatsConfig configures Stats. The zero value is ready for use.
type StatsConfig struct {
	// Exact counts every message, which takes seconds for millions; default off. Otherwise the outbox is counted for a
	// second, the other tables are counted up to 10,000 of a kind, and Count.About marks estimates.
	Exact bool
}

// Stats describes the tables at one time.
type Stats struct {
	At time.Time `json:"at"`
	// topics of the outbox with unsettled messages, a pause or recently published messages, sorted
	Topics     []TopicStats     `json:"topics"`
	Queue      []TopicStats     `json:"queue"`      // of the queue, sorted
	Forwarders []ForwarderStats `json:"forwarders"` // running, or vanished less than an hour ago, sorted
	// UnownedLanes is the number of lanes (of 64) that no running forwarder owns, by scope: messages of their keys wait.
	// This is normal for a moment while forwarders start or stop; otherwise see Doctor.
	UnownedLanes map[string]int `json:"unowned_lanes"`
	Inbox        []TopicStats   `json:"inbox"`      // of consumers that have failing or dead messages, sorted
	Partitions   []Partition    `json:"partitions"` // as Admin.Partitions lists them
}

// TopicStats describes a topic of the outbox or the queue, or a consumer of the inbox, for which only failing and dead
// messages are counted.
type TopicStats struct {
	Topic    string `json:"topic,omitempty"`
	Consumer string `json:"consumer,omitempty"`

	Ready   Count `json:"ready"`
	Failing Count `json:"failing"`
	// FailingOften is the number of failing messages that failed more than three times.
	FailingOften Count `json:"failing_often"`
	Delayed      Count `json:"delayed"`
	Dead         Count `json:"dead"`
	// Oldest is the age of the oldest message that is ready or failing and not being handled. The age of a delayed
	// message counts from its due time.
	Oldest time.Duration `json:"oldest"`
	// Rate is the number of messages published or processed per second in the last minute. For a large table it is an
	// estimate.
	Rate float64 `json:"rate"`
	// Paused is set if an operator has paused the topic, or if a running forwarder cannot reach its broker.
	Paused bool `json:"paused"`
	// PausedBy lists the reasons of the operator and of forwarders.
	PausedBy []Pause `json:"paused_by,omitempty"`
}

const byOperator = "operator"

// Pause is a reason why a topic is paused.
type Pause struct {
	By     string    `json:"by"` // "operator", or the name of the forwarder
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// ForwarderStats describes a forwarder.
type ForwarderStats struct {
	Name   string   `json:"name"`
	Scope  string   `json:"scope"`
	Topics []string `json:"topics"` // empty = all
	Lanes  int      `json:"lanes"`  // of 64
	Alive  bool     `json:"alive"`
	// LeaseLeft is the time until its lease expires; negative after that: the forwarder vanished.
	LeaseLeft time.Duration `json:"lease_left"`
	// WaitingSince is when it began to wait for forwarders with other topics.
	WaitingSince time.Time `json:"waiting_since,omitzero"`
}

// bounds limit what a query counts.
type bounds struct {
	each int64 // messages of a topic or consumer
	all  int64 // of all topics or consumers together
	lane int64 // ready or delayed messages of a lane

	budget time.Duration // time to count beyond the bounds, and then to estimate; 0 = neither

	attempts int64 // smallest number of attempts of the failing messages to count, in inbox and queue
}

var (
	usual   = bounds{each: 10_000, all: 20_000, lane: 100, budget: countFor}
	brisk   = bounds{each: 1000, all: 5000, lane: 64} // for Doctor, which reads everything
	unbound = bounds{each: 1 << 62, all: 1 << 62}
)

const rateSample = 10_000

// Stats returns counts, ages and rates of topics, forwarders, inbox and queue. The figures are not a snapshot.
func (a *Admin) Stats(ctx context.Context, cfg StatsConfig) (*Stats, error) {
	if cfg.Exact {
		return a.stats(ctx, unbound)
	}
	return a.stats(ctx, usual)
}

func (a *Admin) stats(ctx context.Context, b bounds) (*Stats, error) {
	s := &Stats{}
	t := topicSet{}
	steps := []func() error{
		func() (err error) { s.At, err = a.now(ctx); return err },
		func() error { return a.countTopics(ctx, t, b) },
		func() error { return a.rates(ctx, t, sqltext.Rates) },
		func() error { return a.pauses(ctx, t) },
		func() error { return a.forwarders(ctx, s) },
		func() error { return a.unread(ctx, s) },
		func() (err error) { s.Queue, err = a.queue(ctx, b); return err },
		func() (err error) { s.Inbox, err = a.consumers(ctx, b); return err },
		func() (err error) { s.Partitions, err = a.partitionsForStats(ctx); return err },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, fmt.Errorf("stats: %w", err)
		}
	}
	s.Topics = t.sorted()
	for i, q := range s.Queue {
		// An operator's pause also stops the topic in the queue; an outage of the broker does not affect handlers.
		if paused := t[q.Topic]; paused != nil {
			byOperator := slices.DeleteFunc(slices.Clone(paused.PausedBy), func(p Pause) bool { return p.By != byOperator })
			s.Queue[i].Paused, s.Queue[i].PausedBy = len(byOperator) > 0, byOperator
		}
	}
	return s, nil
}

// topicSet is topics by name.
type topicSet map[string]*TopicStats

func (t topicSet) of(name string) *TopicStats {
	if t[name] == nil {
		t[name] = &TopicStats{Topic: name}
	}
	return t[name]
}

func (t topicSet) sorted() []TopicStats {
	list := make([]TopicStats, 0, len(t))
	for _, name := range slices.Sorted(maps.Keys(t)) {
		list = append(list, *t[name])
	}
	return list
}

// partly reports whether a count is incomplete.
func (t topicSet) partly() bool {
	for _, s := range t {
		if s.Dead.More || s.Failing.More || s.Ready.More || s.Delayed.More {
			return true
		}
	}
	return false
}

// add adds a count of a topic.
func (t topicSet) add(state State, topic string, c Count, oldest float64, often int64) {
	s := t.of(topic)
	switch state {
	case Ready: // two counts: never delayed, and delayed until now
		s.Ready = Count{N: s.Ready.N + c.N, More: s.Ready.More || c.More}
	case Failing: // in the queue there may be two counts
		s.Failing = Count{N: s.Failing.N + c.N, More: s.Failing.More || c.More}
		s.FailingOften = Count{N: s.FailingOften.N + often, More: s.Failing.More}
	case Delayed:
		s.Delayed = c
	case Dead:
		s.Dead = c
	}
	if state == Ready || state == Failing {
		s.Oldest = max(s.Oldest, seconds(oldest))
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (a *Admin) countTopics(ctx context.Context, t topicSet, b bounds) error {
	if b == unbound {
		return a.collect(ctx, func(rows drive.Rows) error {
			var state State
			var topic string
			var c Count
			var oldest float64
			var often int64
			err := rows.Scan(&state, &topic, &c.N, &oldest, &often)
			t.add(state, topic, c, oldest, often)
			return err
		}, sqltext.CountOutboxExact)
	}
	for state, statement := range map[State]string{Dead: sqltext.CountDead, Failing: sqltext.CountFailing} {
		err := b.farther(func(b bounds) (bool, error) { return a.countByTopic(ctx, t, state, statement, b) })
		if err != nil {
			return err
		}
	}
	var counts []laneCount
	err := b.farther(func(b bounds) (more bool, err error) {
		counts, err = a.countByLane(ctx, b)
		return slices.ContainsFunc(counts, func(l laneCount) bool { return l.c.More }), err
	})
	if err != nil {
		return err
	}
	for _, l := range counts {
		if l.state != Failing { // failing messages are counted above
			t.add(l.state, l.topic, l.c, l.oldest, 0)
		}
	}
	if !t.partly() || b.budget == 0 {
		return nil
	}
	return a.estimate(ctx, t, sqltext.OutboxPages, sqltext.SampleOutbox)
}

// countByTopic counts by an index on topics.
func (a *Admin) countByTopic(ctx context.Context, t topicSet, state State, statement string, b bounds) (bool, error) {
	more := false
	for _, s := range t { // start again from zero
		if state == Failing {
			s.Failing, s.FailingOften = Count{}, Count{}
		}
	}
	err := a.collect(ctx, func(rows drive.Rows) error {
		var topic string
		var c Count
		var oldest float64
		var often int64
		err := rows.Scan(&topic, &c.N, &c.More, &oldest, &often)
		t.add(state, topic, c, oldest, often)
		more = more || c.More
		return err
	}, statement, b.each, b.all)
	return more, err
}

// laneCount is a count of a topic from an index on lanes.
type laneCount struct {
	topic  string
	state  State
	c      Count
	oldest float64
}

// countByLane counts by the indexes on lanes.
func (a *Admin) countByLane(ctx context.Context, b bounds) (counts []laneCount, err error) {
	for _, statement := range []string{sqltext.CountReady, sqltext.CountDelayed} {
		err := a.collect(ctx, func(rows drive.Rows) error {
			var l laneCount
			err := rows.Scan(&l.topic, &l.c.N, &l.c.More, &l.oldest, &l.state)
			counts = append(counts, l)
			return err
		}, statement, b.lane)
		if err != nil {
			return nil, err
		}
	}
	return counts, nil
}

func (a *Admin) rates(ctx context.Context, t topicSet, statement string) error {
	return a.collect(ctx, func(rows drive.Rows) error {
		var topic string
		var rate float64
		err := rows.Scan(&topic, &rate)
		t.of(topic).Rate = rate
		return err
	}, statement, int64(rateSample))
}

func (a *Admin) pauses(ctx context.Context, t topicSet) error {
	return a.collect(ctx, func(rows drive.Rows) error {
		var topic string
		var p Pause
		err := rows.Scan(&topic, &p.By, &p.Since, &p.Reason)
		p.Reason = text.Redact(p.Reason)
		s := t.of(topic)
		s.Paused, s.PausedBy = true, append(s.PausedBy, p)
		return err
	}, sqltext.Pauses)
}

func (a *Admin) forwarders(ctx context.Context, s *Stats) error {
	s.Forwarders = []ForwarderStats{}
	err := a.collect(ctx, func(rows drive.Rows) error {
		var f ForwarderStats
		var topics string
		var left float64
		var waiting sql.NullTime
		if err := rows.Scan(&f.Name, &f.Scope, &topics, &f.Lanes, &left, &waiting); err != nil {
			return err
		}
		f.LeaseLeft, f.Alive, f.WaitingSince = seconds(left), left > 0, waiting.Time
		s.Forwarders = append(s.Forwarders, f)
		return json.Unmarshal([]byte(topics), &s.Forwarders[len(s.Forwarders)-1].Topics)
	}, sqltext.Forwarders)
	slices.SortStableFunc(s.Forwarders, func(x, y ForwarderStats) int { return cmp.Compare(x.Name, y.Name) })
	return err
}

func (a *Admin) unread(ctx context.Context, s *Stats) error {
	s.UnownedLanes = map[string]int{}
	return a.collect(ctx, func(rows drive.Rows) error {
		var scope string
		var lanes int
		err := rows.Scan(&scope, &lanes)
		s.UnownedLanes[scope] = lanes
		return err
	}, sqltext.Unread)
}
