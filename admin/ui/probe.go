package ui

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/summary"
)

// pulse checks at most once a second whether the database responds, however many probes arrive.
type pulse struct {
	admin *admin.Admin
	mu    sync.Mutex
	at    time.Time
	alive bool
}

func newPulse(a *admin.Admin) *pulse { return &pulse{admin: a} }

const probeTimeout = 5 * time.Second // for a probe with one query

func (p *pulse) beats(ctx context.Context) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.at) >= fresh {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		_, _, err := p.admin.Audit(ctx, admin.Page{Limit: 1})
		p.alive, p.at = err == nil, time.Now()
	}
	return p.alive
}

// ready responds to a probe with 200 if the database responds.
func (h *Handler) ready(w http.ResponseWriter, r *http.Request) {
	if h.pulse.beats(context.WithoutCancel(r.Context())) {
		answerProbe(w, http.StatusOK, "ok")
		return
	}
	answerProbe(w, http.StatusServiceUnavailable, unavailable)
}

// health responds to a probe with the health of the outbox. It shows only the severity.
func (h *Handler) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), judgeTimeout)
	defer cancel()
	findings, err := h.watch.judge(ctx)
	health := summary.Judge(findings)
	switch {
	case health.Severity == admin.Critical:
		answerProbe(w, http.StatusServiceUnavailable, health.Severity.String())
	case err != nil:
		answerProbe(w, http.StatusServiceUnavailable, unavailable)
	case len(health.Problems) > 0:
		answerProbe(w, http.StatusOK, health.Severity.String())
	default:
		answerProbe(w, http.StatusOK, "ok")
	}
}

const unavailable = "unavailable"

func answerProbe(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}
