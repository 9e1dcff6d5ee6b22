package ui

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// Config configures New. The zero value shows everything but payloads, and allows no act.
type Config struct {
	// Admin configures the reads and acts of the page.
	Admin admin.Config
	// Title is the heading of the page; default "Outbox".
	Title string
	// Authorize returns what the sender of a request may do; default: read only. An error refuses the request with 403.
	// It is called concurrently.
	Authorize func(r *http.Request) (Access, error)
	// SampleInterval is how often Run samples the figures; default 10 s. Charts show 360 samples, an hour by default.
	SampleInterval time.Duration
	// Brokers are checked for findings too, as by admin.Doctor; default none. They must be safe for concurrent use.
	Brokers []broker.Checker
}

// Access is what a user may do besides reading. The zero value allows nothing more.
type Access struct {
	// Actor is the user's name, for the audit log. Default: Config.Admin.Actor.
	Actor string
	// Act allows all acts: requeue, redrive, discard, skip, replay, retry_now, pause and resume.
	Act bool
	// Payloads allows the user to see payloads.
	Payloads bool
}

func (c *Config) setDefaults() {
	if c.Title == "" {
		c.Title = "Outbox"
	}
	if c.Authorize == nil {
		c.Authorize = func(*http.Request) (Access, error) { return Access{}, nil }
	}
	if c.SampleInterval == 0 {
		c.SampleInterval = 10 * time.Second
	}
}

//go:embed page
var files embed.FS

// Handler serves the page. It is safe for concurrent use.
type Handler struct {
	admin   *admin.Admin
	cfg     Config
	logger  watermill.LoggerAdapter
	watch   *watcher
	pulse   *pulse
	origins http.CrossOriginProtection
	running atomic.Bool
}

var (
	_ http.Handler  = (*Handler)(nil)
	_ outbox.Runner = (*Handler)(nil)
)

// New returns a Handler. It does no I/O. It returns outbox.ErrNoDB or an error that names an invalid field. A nil
// logger is the logger of db.
func New(db *outbox.DB, cfg Config, logger watermill.LoggerAdapter) (*Handler, error) {
	a, err := admin.New(db, cfg.Admin, logger)
	if err != nil {
		return nil, err
	}
	if cfg.SampleInterval < 0 {
		return nil, fmt.Errorf("ui: Config.SampleInterval is %s: use the time between samples, or 0 for 10 "+
			"s", cfg.SampleInterval)
	}
	cfg.setDefaults()
	own := (*core.DB)(db)
	return &Handler{
		admin: a, cfg: cfg, logger: own.Logger(logger), watch: newWatcher(own, a, cfg), pulse: newPulse(a),
	}, nil
}

// Run samples the figures every SampleInterval until ctx ends, so that the charts have data when a page is opened.
// Without it they begin when the first page is opened. It returns nil, or outbox.ErrRunning if it was called before.
func (h *Handler) Run(ctx context.Context) error {
	if !h.running.CompareAndSwap(false, true) {
		return outbox.ErrRunning
	}
	for tick := time.NewTicker(h.cfg.SampleInterval); ; {
		_, _ = h.watch.stats(ctx) // the page shows the error
		select {
		case <-ctx.Done():
			tick.Stop()
			return nil
		case <-tick.C:
		}
	}
}

// request is one request being served.
type request struct {
	*Handler
	w      http.ResponseWriter
	r      *http.Request
	access Access
	page   string
}

// pages are the handlers by the path after the last slash.
var pages = map[string]func(*request) error{
	"": (*request).overview, "errors": (*request).errors, "messages": (*request).messages, "message": (*request).message,
	"find": (*request).find, "audit": (*request).audit, "act": (*request).act,
}

// ServeHTTP serves the page.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setHeaders(w.Header())
	page := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	switch {
	case r.URL.Path == "": // the stripped prefix had no trailing slash, which relative links need
		target, _, _ := strings.Cut(r.RequestURI, "?")
		w.Header().Set("Location", "./"+path.Base(target)+"/")
		w.WriteHeader(http.StatusMovedPermanently)
		return
	case page == "health":
		h.health(w, r)
		return
	case page == "ready":
		h.ready(w, r)
		return
	case assets[page] != nil:
		assets[page].answer(w, r)
		return
	}
	rq := &request{Handler: h, w: w, r: r, page: page}
	if err := rq.answer(); err != nil {
		rq.fail(err)
	}
}

func (rq *request) answer() (err error) {
	if rq.access, err = rq.cfg.Authorize(rq.r); err != nil {
		rq.logger.Info("page refused a request", watermill.LogFields{"error": fmt.Sprintf("%q", err)})
		return &problem{
			status: http.StatusForbidden, Heading: "Access denied", Advice: "Ask the operators of this service for access.",
		}
	}
	show := pages[rq.page]
	if show == nil {
		return &problem{status: http.StatusNotFound, Heading: "Page not found", Advice: "Start at the overview."}
	}
	switch rq.r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		if rq.page == "act" {
			if err := rq.checkOrigin(); err != nil {
				return err
			}
			break
		}
		fallthrough
	default:
		rq.w.Header().Set("Allow", "GET, HEAD")
		return &problem{
			status: http.StatusMethodNotAllowed, Heading: "Method not allowed", Advice: "Go back to the page and try again.",
		}
	}
	return show(rq)
}

// setHeaders forbids everything that the page does not need.
func setHeaders(header http.Header) {
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "+
		"connect-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "same-origin") // otherwise browsers would not send a POST's origin
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
}

// show renders a page completely before it sends anything.
func (rq *request) show(status int, name string, data any) error {
	token, err := rq.token()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	err = templates[name].Execute(&b, &view{
		Title: rq.cfg.Title, Page: rq.page, Access: rq.access, Token: token, Now: time.Now(), Data: data,
		Find: findOf(data),
	})
	if err != nil {
		// Cause: a bug of the page itself.
		// Cure: report it, and use outboxctl meanwhile.
		rq.logger.Error("page could not be rendered", err, watermill.LogFields{"page": name})
		return &problem{
			http.StatusInternalServerError, "The page could not be rendered", "This is a fault of the page itself. See the log.",
		}
	}
	rq.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	rq.w.WriteHeader(status)
	_, _ = rq.w.Write(b.Bytes()) // the client went away
	return nil
}
