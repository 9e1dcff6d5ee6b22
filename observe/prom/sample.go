package prom

import (
	"context"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/partitions"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Limits of counts, as in package admin.
const (
	countEach = 10_000 // dead or failing, of a topic or consumer
	countAll  = 20_000 // of all together, so that several share the bound
	countLane = 100    // ready or delayed, of a lane
)

// cell names one count: its topic or consumer, and its state or the pauser.
type cell struct{ of, state string }

// counted is a number, and the age of the oldest in seconds.
type counted struct{ n, oldest float64 }

// sample is the result of one query.
type sample struct {
	outbox, inbox, queue, paused, forwarders, lanes map[cell]counted
	reads, unhandled                                map[cell]counted // topics
	bounded                                         bool             // a count stopped at its bound
	partitions                                      *partitions.Set  // nil = the outbox is one table
}

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
		was := (*parts[part])[at] // ready messages have two rows: delayed before, and never delayed
		(*parts[part])[at] = counted{was.n + c.n, max(was.oldest, c.oldest)}
		s.bounded = s.bounded || more
		return nil
	}, db.Render(sqltext.Scrape), int64(countEach), int64(countAll), int64(countLane))
	if err == nil {
		set, failed := partitions.Read(ctx, db, db.Tables())
		switch {
		case ctx.Err() != nil:
			err = failed
		case failed == nil && set.Partitioned: // Doctor reports why they cannot be read
			s.partitions = &set
		}
	}
	return s, text.Explain(err)
}

// unread is 1 if messages of a topic are ready, and no running forwarder has the topic.
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

// known holds everything seen so far: its series stay, with zeros.
type known struct {
	topics, queues, consumers, scopes names
}

func (k *known) learn(s sample) {
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
