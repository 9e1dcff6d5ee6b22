package prom

import (
	"context"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/partitions"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// The limits of counts are the same as in package admin.
const (
	countEach = 10_000 // dead or failing messages of a topic or consumer
	countAll  = 20_000 // dead or failing messages of all topics or consumers
	countLane = 100    // ready or delayed messages of a lane
)

// cell is the key of a count: a topic, consumer or scope, and a state or who paused the topic.
type cell struct{ of, state string }

// counted is a count, and the age of the oldest item in seconds.
type counted struct{ n, oldest float64 }

// sample is the state of the tables at one time.
type sample struct {
	outbox, inbox, queue, paused, forwarders, lanes map[cell]counted
	reads, unhandled                                map[cell]counted // by topic
	bounded                                         bool             // a count stopped at its limit
	partitions                                      *partitions.Set  // nil = not partitioned, or unknown
}

// scrape reads the state of the tables.
func scrape(ctx context.Context, db *core.DB) (sample, error) {
	s := sample{}
	parts := map[string]*map[cell]counted{
		"outbox": &s.outbox, "inbox": &s.inbox, "queue": &s.queue, "paused": &s.paused, "forwarders": &s.forwarders,
		"lanes": &s.lanes, "reads": &s.reads, "unhandled": &s.unhandled,
	}
	for _, cells := range parts {
		*cells = map[cell]counted{}
	}
	err := db.Walk(ctx, func(rows drive.Rows) error {
		var part string
		var at cell
		var c counted
		var more bool
		if err := rows.Scan(&part, &at.of, &at.state, &c.n, &more, &c.oldest); err != nil {
			return err
		}
		was := (*parts[part])[at] // a topic's ready messages come in two rows: once delayed, and never delayed
		(*parts[part])[at] = counted{was.n + c.n, max(was.oldest, c.oldest)}
		s.bounded = s.bounded || more
		return nil
	}, db.Render(sqltext.Scrape), int64(countEach), int64(countAll), int64(countLane))
	if err == nil {
		set, failed := partitions.Read(ctx, db, db.Tables())
		switch {
		case ctx.Err() != nil:
			err = failed
		case failed == nil && set.Partitioned: // admin.Doctor reports partitions that cannot be read
			s.partitions = &set
		}
	}
	return s, text.Explain(err)
}

// unread returns 1 if messages of a topic are ready, and none of the running forwarders publishes the topic; else 0.
func (s sample) unread(topic string) float64 {
	all, its := s.reads[cell{}], s.reads[cell{topic, ""}]
	if s.outbox[cell{topic, "ready"}].n > 0 && len(s.reads) > 0 && all.n+its.n == 0 {
		return 1
	}
	return 0
}

// names is a set of names.
type names map[string]bool

func (n *names) add(name string) {
	if *n == nil {
		*n = names{}
	}
	(*n)[name] = true
}

// known holds the names seen so far. Their series stay, at zero if nothing is left to count.
type known struct {
	topics, queues, consumers, scopes names
}

// add adds the names in a sample.
func (k *known) add(s sample) {
	for _, l := range []struct {
		cells map[cell]counted
		names *names
	}{{s.outbox, &k.topics}, {s.paused, &k.topics}, {s.queue, &k.queues}, {s.inbox, &k.consumers}, {s.lanes, &k.scopes},
		{s.reads, &k.topics}} {
		for at := range l.cells {
			if at.of != "" {
				l.names.add(at.of)
			}
		}
	}
}
