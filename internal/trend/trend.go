// Package trend reads how many messages per second were written and published, for the charts of the page.
package trend

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

const (
	steps     = 60
	recentIDs = 8000 // within the requested time
	olderIDs  = 4000 // for messages published later
	latest    = 5    // steps that give the current rate
	timeout   = 10 * time.Second
)

// Config selects what to read.
type Config struct {
	Over  time.Duration // how far to look back
	Topic string        // "" = all topics; figures of a topic with few messages are coarse
}

// Trend is the rate of written and published messages of the outbox over time.
type Trend struct {
	At   time.Time     // when the last step ended, by the database's clock
	Step time.Duration // a sixtieth of Config.Over
	// Points are the steps, oldest first, of Config.Topic, or of all topics together.
	Points []Point
	// Topics are the topics with messages in this time, busiest first, with their rates in the last five steps.
	Topics []Topic
	About  bool // the rates are estimates from a sample
}

// Point is one step.
type Point struct {
	At                 time.Time // start of the step
	Written, Published float64   // messages per second
}

// Topic is the current rate of a topic.
type Topic struct {
	Topic              string
	Written, Published float64 // messages per second
}

// Now returns how many messages per second were written and published in the last five steps.
func (t *Trend) Now() (written, published float64) {
	last := t.Points[len(t.Points)-min(latest, len(t.Points)):]
	for _, p := range last {
		written, published = written+p.Written, published+p.Published
	}
	n := float64(max(len(last), 1))
	return written / n, published / n
}

// Read returns how many messages per second were written and published over a time. It reads at most 12,000 kept rows.
func Read(ctx context.Context, db *core.DB, cfg Config) (*Trend, error) {
	var now time.Time
	err := collect(ctx, db, func(rows drive.Rows) error { return rows.Scan(&now) }, sqltext.Now)
	if err != nil {
		return nil, fmt.Errorf("trend: %w", err)
	}
	begin := now.Add(-cfg.Over)
	t := &Trend{At: now, Step: cfg.Over / steps, Points: make([]Point, steps)}
	for i := range t.Points {
		t.Points[i].At = begin.Add(time.Duration(i) * t.Step)
	}
	var low, first, high int64
	err = collect(ctx, db, func(rows drive.Rows) error { return rows.Scan(&low, &first, &high) }, sqltext.TrendBounds,
		stamp(begin))
	topics := map[string]*Topic{}
	if err == nil {
		err = sample(ctx, db, cfg, t, topics, first, high, recentIDs)
	}
	if err == nil {
		err = sample(ctx, db, cfg, t, topics, low, first-1, olderIDs)
	}
	if err != nil {
		return nil, fmt.Errorf("trend: %w", err)
	}
	for _, topic := range topics {
		t.Topics = append(t.Topics, *topic)
	}
	slices.SortFunc(t.Topics, func(x, y Topic) int {
		return cmp.Or(cmp.Compare(y.Written+y.Published, x.Written+x.Published), cmp.Compare(x.Topic, y.Topic))
	})
	return t, nil
}

// sample adds the rates of rows with ids from first to last.
func sample(
	ctx context.Context, db *core.DB, cfg Config, t *Trend, topics map[string]*Topic, first, last, ids int64,
) error {
	all := last - first + 1
	if all <= 0 {
		return nil
	}
	of := max(1, float64(all)/float64(ids)) / t.Step.Seconds() // the part of a rate that one row represents
	t.About = t.About || all > ids
	return collect(ctx, db, func(rows drive.Rows) error {
		var topic string
		var written, published, n int64
		if err := rows.Scan(&topic, &written, &published, &n); err != nil {
			return err
		}
		if topics[topic] == nil {
			topics[topic] = &Topic{Topic: topic}
		}
		add := func(step int64, to, ofTopic *float64) {
			if cfg.Topic == "" || cfg.Topic == topic {
				*to += float64(n) * of
			}
			if step >= steps-latest {
				*ofTopic += float64(n) * of / latest
			}
		}
		if written >= 0 && written < steps {
			add(written, &t.Points[written].Written, &topics[topic].Written)
		}
		if published >= 0 && published < steps {
			add(published, &t.Points[published].Published, &topics[topic].Published)
		}
		return nil
	}, sqltext.TrendSample, first, last, ids, stamp(t.Points[0].At), t.Step.Seconds())
}

func collect(ctx context.Context, db *core.DB, scan func(drive.Rows) error, statement string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return text.Explain(db.Walk(ctx, scan, db.Render(statement), args...))
}

// stamp formats a time for statements.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
