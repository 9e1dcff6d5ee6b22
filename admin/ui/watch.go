package ui

import (
	"context"
	"sync"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/trend"
)

const (
	fresh      = time.Second // age up to which figures count as current
	examined   = 10 * time.Second
	maxSamples = 360
)

// sample holds the figures of the charts at one time.
type sample struct {
	at                       time.Time
	rate, lag, backlog, dead float64
}

// watcher reads the figures for all viewers, and keeps samples for the charts.
type watcher struct {
	db      *core.DB
	admin   *admin.Admin
	brokers []broker.Checker
	every   time.Duration
	turn    chan struct{} // its holder reads

	mu      sync.Mutex
	acts    int // number of acts; guarded by mu, like the following fields
	latest  *admin.Stats
	readAt  time.Time
	samples []sample // oldest first
	trends  map[trend.Config]*trendAt

	examining  chan struct{} // its holder runs Doctor
	findings   []admin.Finding
	examinedAt time.Time
}

func newWatcher(db *core.DB, a *admin.Admin, cfg Config) *watcher {
	return &watcher{
		db: db, admin: a, brokers: cfg.Brokers, every: cfg.SampleInterval,
		trends: map[trend.Config]*trendAt{}, turn: make(chan struct{}, 1),
		examining: make(chan struct{}, 1),
	}
}

// judge returns the findings of Doctor, at most a few seconds old. On an error it also returns the findings made
// before.
func (w *watcher) judge(ctx context.Context) ([]admin.Finding, error) {
	select {
	case w.examining <- struct{}{}:
		defer func() { <-w.examining }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	w.mu.Lock()
	findings, age, acts := w.findings, time.Since(w.examinedAt), w.acts
	w.mu.Unlock()
	if age < min(examined, w.every) {
		return findings, nil
	}
	begun := time.Now()
	findings, err := w.admin.Doctor(ctx, w.brokers...)
	if err == nil {
		w.found(findings, begun, acts)
	}
	return findings, err
}

// found keeps findings, unless an act has changed something since the check began.
func (w *watcher) found(findings []admin.Finding, begun time.Time, acts int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.acts == acts {
		w.findings, w.examinedAt = findings, begun
	}
}

// stats returns figures that are at most a second old.
func (w *watcher) stats(ctx context.Context) (*admin.Stats, error) {
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	w.mu.Lock()
	latest, age, acts := w.latest, time.Since(w.readAt), w.acts
	w.mu.Unlock()
	if latest != nil && age < min(fresh, w.every) {
		return latest, nil
	}
	s, err := w.admin.Stats(ctx, admin.StatsConfig{})
	if err != nil {
		return nil, err
	}
	w.record(s, time.Now(), acts)
	return s, nil
}

// recent returns the last figures read, or nil if they are old.
func (w *watcher) recent() *admin.Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.readAt) > max(2*w.every, fresh) {
		return nil
	}
	return w.latest
}

// record keeps figures, but only for the charts if an act has changed something since they were read. Figures that come
// more often than the charts show replace the last sample.
func (w *watcher) record(s *admin.Stats, now time.Time, acts int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.acts == acts {
		w.latest, w.readAt = s, now
	}
	next := sample{at: now}
	for _, t := range s.Topics {
		next.rate += t.Rate
		next.backlog += float64(t.Ready.N + t.Failing.N)
		next.dead += float64(t.Dead.N)
		next.lag = max(next.lag, t.Oldest.Seconds())
	}
	if n := len(w.samples); n > 1 && w.samples[n-1].at.Sub(w.samples[n-2].at) < w.every*9/10 {
		w.samples[n-1] = next
		return
	}
	if len(w.samples) == maxSamples {
		w.samples = w.samples[1:]
	}
	w.samples = append(w.samples, next)
}

// forget makes the next viewer see the changes of an act.
func (w *watcher) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acts++
	w.latest, w.examinedAt = nil, time.Time{}
}

// history returns the samples of the charts.
func (w *watcher) history() []sample {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]sample(nil), w.samples...)
}
