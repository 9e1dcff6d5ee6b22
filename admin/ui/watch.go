package ui

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
)

const (
	fresh      = time.Second // how long figures are taken for those of now
	maxSamples = 360
)

// sample is what charts show of one time.
type sample struct {
	at                       time.Time
	rate, lag, backlog, dead float64
}

// watcher reads the figures for all who look, and keeps what charts show.
type watcher struct {
	admin *admin.Admin
	every time.Duration
	turn  chan struct{} // who has it reads

	mu      sync.Mutex
	latest  *admin.Stats // guarded by mu, as what follows
	readAt  time.Time
	samples []sample // oldest first
}

func newWatcher(a *admin.Admin, every time.Duration) *watcher {
	return &watcher{admin: a, every: every, turn: make(chan struct{}, 1)}
}

// stats returns figures that are a second old at most.
func (w *watcher) stats(ctx context.Context) (*admin.Stats, error) {
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	w.mu.Lock()
	latest, age := w.latest, time.Since(w.readAt)
	w.mu.Unlock()
	if latest != nil && age < min(fresh, w.every) {
		return latest, nil
	}
	s, err := w.admin.Stats(ctx, admin.StatsConfig{})
	if err != nil {
		return nil, err
	}
	w.note(s, time.Now())
	return s, nil
}

// recent returns the figures that were read last, or nil if that was a while ago.
func (w *watcher) recent() *admin.Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.readAt) > max(2*w.every, fresh) {
		return nil
	}
	return w.latest
}

// note keeps figures. Those that come more often than charts show are shown in the place of the last.
func (w *watcher) note(s *admin.Stats, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.latest, w.readAt = s, now
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

// forget has the next who looks see what was done meanwhile.
func (w *watcher) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.latest = nil
}

// history returns what charts show.
func (w *watcher) history() []sample {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]sample(nil), w.samples...)
}

// pulse asks the database at most once a second whether it is there, however many probes ask us.
type pulse struct {
	admin *admin.Admin
	mu    sync.Mutex
	at    time.Time
	alive bool
}

func newPulse(a *admin.Admin) *pulse { return &pulse{admin: a} }

const pulseTimeout = 5 * time.Second

func (p *pulse) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if p.beats(context.WithoutCancel(r.Context())) {
		_, _ = w.Write([]byte("ok\n"))
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.Write([]byte("unavailable\n"))
}

func (p *pulse) beats(ctx context.Context) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.at) >= fresh {
		ctx, cancel := context.WithTimeout(ctx, pulseTimeout)
		defer cancel()
		_, _, err := p.admin.Audit(ctx, admin.Page{Limit: 1})
		p.alive, p.at = err == nil, time.Now()
	}
	return p.alive
}
