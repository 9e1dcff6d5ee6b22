package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	trendSteps  = 60
	defaultOver = time.Hour
	maxOver     = 7 * 24 * time.Hour
	trendRecent = 8000 // ids within the requested time
	trendOlder  = 4000 // older ids, for messages published later
	// trendNow is the number of latest steps that give the present rate.
	trendNow = 5
)

// TrendConfig configures Trend. The zero value is ready for use.
type TrendConfig struct {
	// Over is how far to look back; default 1 h, at most 7 days.
	Over time.Duration
	// Topic selects one topic; default "", all together. Figures of a topic with few messages are coarse.
	Topic string
}

// Trend is the rate of written and published messages of the outbox in steps of time.
type Trend struct {
	At   time.Time     `json:"at"`   // when the last step ended, by the database's clock
	Step time.Duration `json:"step"` // a sixtieth of TrendConfig.Over
	// Points are the steps, oldest first, of TrendConfig.Topic, or of all topics together.
	Points []TrendPoint `json:"points"`
	// Topics are those with messages of this time, most of them first, with their rates in the last five steps.
	Topics []TopicTrend `json:"topics"`
	// About is set if the rates are estimates from a sample.
	About bool `json:"about,omitempty"`
}

// TrendPoint is one step.
type TrendPoint struct {
	At        time.Time `json:"at"`        // start of the step
	Written   float64   `json:"written"`   // messages per second
	Published float64   `json:"published"` // messages per second
}

// TopicTrend is the present rate of a topic.
type TopicTrend struct {
	Topic     string  `json:"topic"`
	Written   float64 `json:"written"`   // messages per second
	Published float64 `json:"published"` // messages per second
}

// Now returns how many messages a second were written and published in the last five steps.
func (t *Trend) Now() (written, published float64) {
	last := t.Points[len(t.Points)-min(trendNow, len(t.Points)):]
	for _, p := range last {
		written, published = written+p.Written, published+p.Published
	}
	n := float64(max(len(last), 1))
	return written / n, published / n
}

// Trend returns how many messages a second were written and published over a time. It reads at most 12,000 kept rows.
func (a *Admin) Trend(ctx context.Context, cfg TrendConfig) (*Trend, error) {
	if cfg.Over == 0 {
		cfg.Over = defaultOver
	}
	if cfg.Over < time.Minute || cfg.Over > maxOver {
		return nil, invalid("admin: TrendConfig.Over is %s: use 1 min to 7 days, or 0 for an hour", cfg.Over)
	}
	now, err := a.now(ctx)
	if err != nil {
		return nil, fmt.Errorf("trend: %w", err)
	}
	begin := now.Add(-cfg.Over)
	t := &Trend{At: now, Step: cfg.Over / trendSteps, Points: make([]TrendPoint, trendSteps), Topics: []TopicTrend{}}
	for i := range t.Points {
		t.Points[i].At = begin.Add(time.Duration(i) * t.Step)
	}
	var low, first, high int64
	err = a.collect(ctx, func(rows drive.Rows) error { return rows.Scan(&low, &first, &high) }, sqltext.TrendBounds,
		stamp(begin))
	topics := map[string]*TopicTrend{}
	if err == nil {
		err = a.sample(ctx, cfg, t, topics, first, high, trendRecent)
	}
	if err == nil {
		err = a.sample(ctx, cfg, t, topics, low, first-1, trendOlder)
	}
	if err != nil {
		return nil, fmt.Errorf("trend: %w", err)
	}
	for _, topic := range topics {
		t.Topics = append(t.Topics, *topic)
	}
	slices.SortFunc(t.Topics, func(x, y TopicTrend) int {
		return cmp.Or(cmp.Compare(y.Written+y.Published, x.Written+x.Published), cmp.Compare(x.Topic, y.Topic))
	})
	return t, nil
}

// sample adds the rates of rows with ids from first to last.
func (a *Admin) sample(
	ctx context.Context, cfg TrendConfig, t *Trend, topics map[string]*TopicTrend, first, last, ids int64,
) error {
	all := last - first + 1
	if all <= 0 {
		return nil
	}
	of := max(1, float64(all)/float64(ids)) / t.Step.Seconds() // the share of a rate that one row represents
	t.About = t.About || all > ids
	return a.collect(ctx, func(rows drive.Rows) error {
		var topic string
		var written, published, n int64
		if err := rows.Scan(&topic, &written, &published, &n); err != nil {
			return err
		}
		if topics[topic] == nil {
			topics[topic] = &TopicTrend{Topic: topic}
		}
		add := func(step int64, to, ofTopic *float64) {
			if cfg.Topic == "" || cfg.Topic == topic {
				*to += float64(n) * of
			}
			if step >= trendSteps-trendNow {
				*ofTopic += float64(n) * of / trendNow
			}
		}
		if written >= 0 && written < trendSteps {
			add(written, &t.Points[written].Written, &topics[topic].Written)
		}
		if published >= 0 && published < trendSteps {
			add(published, &t.Points[published].Published, &topics[topic].Published)
		}
		return nil
	}, sqltext.TrendSample, first, last, ids, stamp(t.Points[0].At), t.Step.Seconds())
}
