package ui

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/trend"
)

const (
	trendWidth  = 600
	trendHeight = 120
	trendFresh  = 15 * time.Second
	day         = 24 * time.Hour
)

// trendChart shows written and published messages over an hour or a day.
type trendChart struct {
	Written, Published string // paths
	Most, Half         string // the scale
	From, Middle       string // of the time axis
	Now                string
	About              bool
	Slices             []slice
	Steps              []trendStep // the same as a table, newest first
	Ranges             []tab
	Topic, Course      string // "" = all topics
}

// trendStep is a step as text.
type trendStep struct{ At, Written, Published string }

// slice is a step of a chart, and the figures shown over it.
type slice struct{ X, Width, Text string }

// trend returns the rates of written and published messages, at most a few seconds old.
func (w *watcher) trend(ctx context.Context, cfg trend.Config) (*trend.Trend, error) {
	w.mu.Lock()
	known := w.trends[cfg]
	w.mu.Unlock()
	if known != nil && time.Since(known.at) < trendFresh {
		return known.trend, nil
	}
	t, err := trend.Read(ctx, w.db, cfg)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.trends, func(_ trend.Config, t *trendAt) bool { return time.Since(t.at) >= trendFresh })
	w.trends[cfg] = &trendAt{t, time.Now()}
	return t, nil
}

type trendAt struct {
	trend *trend.Trend
	at    time.Time
}

// trends fills in the chart of the requested topic and range, and the course of the backlog over the last hour.
func (rq *request) trends(ctx context.Context, o *overview, s *admin.Stats) error {
	hour, err := rq.watch.trend(ctx, trend.Config{Over: time.Hour})
	if err != nil {
		return err
	}
	o.Tiles[backlogTile].Note = course(hour, backlogOf(total(s.Topics))) + o.Tiles[backlogTile].Note
	o.WrittenBy = map[string]float64{}
	for _, t := range hour.Topics {
		o.WrittenBy[t.Topic] = t.Written
	}
	asked, isDay := rq.r.URL.Query(), rq.r.URL.Query().Get("range") == "day"
	cfg := trend.Config{Over: time.Hour}
	if topic := asked.Get("topic"); known(topic, s, hour) {
		cfg.Topic = topic
	}
	ofTopic, ofHour := hour, hour
	if cfg.Topic != "" {
		if ofHour, err = rq.watch.trend(ctx, cfg); err != nil {
			return err
		}
	}
	if ofTopic = ofHour; isDay {
		cfg.Over = day
		if ofTopic, err = rq.watch.trend(ctx, cfg); err != nil {
			return err
		}
	}
	o.Trend = drawTrend(ofTopic)
	o.Trend.Topic = cfg.Topic
	for _, t := range s.Topics {
		if t.Topic == cfg.Topic {
			o.Trend.Course = course(ofHour, backlogOf(t))
		}
	}
	o.Trend.Ranges = []tab{
		{Name: "Last hour", Link: trendLink(cfg.Topic, ""), On: !isDay},
		{Name: "Last day", Link: trendLink(cfg.Topic, "day"), On: isDay},
	}
	if cfg.Topic != "" {
		o.Trend.Ranges = append(o.Trend.Ranges, tab{Name: "All topics", Link: trendLink("", asked.Get("range"))})
	}
	return nil
}

// known reports whether a topic has messages, or had some in the last hour. Other topics have no chart.
func known(topic string, s *admin.Stats, hour *trend.Trend) bool {
	return slices.ContainsFunc(s.Topics, func(t admin.TopicStats) bool { return t.Topic == topic }) ||
		slices.ContainsFunc(hour.Topics, func(t trend.Topic) bool { return t.Topic == topic })
}

// trendLink returns the URL of the overview with the chart of a topic, or of all.
func trendLink(topic, over string) string {
	query := url.Values{}
	for name, value := range map[string]string{"topic": topic, "range": over} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if len(query) == 0 {
		return "./#trend"
	}
	return "./?" + query.Encode() + "#trend"
}

// course describes whether a backlog grows or drains, and when it will be empty.
func course(t *trend.Trend, backlog admin.Count) string {
	written, published := t.Now()
	drains := published - written
	switch noise := math.Max(written, published) / 10; {
	case backlog.N == 0:
		return ""
	case drains > noise:
		left := time.Duration(float64(backlog.N) / drains * float64(time.Second))
		return "draining, empty in about " + about(max(left, time.Second)) + "; "
	case -drains > noise:
		return "growing by " + rate(-drains) + "/s; "
	case written+published == 0:
		return "steady; "
	}
	return "steady; "
}

func drawTrend(t *trend.Trend) *trendChart {
	most := 0.0
	for _, p := range t.Points {
		most = max(most, p.Written, p.Published)
	}
	width := float64(trendWidth) / float64(len(t.Points))
	c := &trendChart{Most: rate(most) + "/s", Half: rate(most/2) + "/s", About: t.About}
	var written, published strings.Builder
	for i, p := range t.Points {
		x, command := (float64(i)+.5)*width, "L"
		if i == 0 {
			command = "M"
		}
		y := func(v float64) float64 { return trendHeight * (1 - v/math.Max(most, 1e-9)) }
		fmt.Fprintf(&written, "%s%.1f %.1f", command, x, y(p.Written))
		fmt.Fprintf(&published, "%s%.1f %.1f", command, x, y(p.Published))
		c.Slices = append(c.Slices, slice{
			X: fmt.Sprintf("%.1f", float64(i)*width), Width: fmt.Sprintf("%.1f", width),
			Text: fmt.Sprintf("%s: %s/s written, %s/s published", p.At.UTC().Format("Jan 2 15:04 UTC"), rate(p.Written),
				rate(p.Published)),
		})
	}
	for _, p := range slices.Backward(t.Points) {
		c.Steps = append(c.Steps, trendStep{
			At: p.At.UTC().Format("Jan 2 15:04 UTC"), Written: rate(p.Written), Published: rate(p.Published),
		})
	}
	c.Written, c.Published = written.String(), published.String()
	over := t.Step * time.Duration(len(t.Points))
	c.From, c.Middle = about(over)+" ago", about(over/2)+" ago"
	w, p := t.Now()
	c.Now = fmt.Sprintf("now %s/s written, %s/s published", rate(w), rate(p))
	return c
}
