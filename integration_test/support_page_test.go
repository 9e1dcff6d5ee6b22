package integration_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	asked "github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/idempotency"
)

// site is the page as seen by a browser without JavaScript.
type site struct {
	t       testing.TB
	handler *ui.Handler
	log     *lines
	cookie  *http.Cookie
}

// lines is a logger that keeps lines as text.
type lines struct {
	watermill.LoggerAdapter
	mu  sync.Mutex
	all []string
}

func (l *lines) With(watermill.LogFields) watermill.LoggerAdapter { return l }

func (l *lines) Error(msg string, err error, fields watermill.LogFields) {
	l.add(msg, err, fields)
}
func (l *lines) Info(msg string, fields watermill.LogFields) { l.add(msg, nil, fields) }

func (l *lines) add(msg string, err error, fields watermill.LogFields) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := msg
	if err != nil {
		text += " " + err.Error()
	}
	for name, value := range fields {
		s, _ := value.(string)
		text += " " + name + "=" + s
	}
	l.all = append(l.all, text)
}

func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = nil
	return all
}

// newSite returns the page of a handle's tables, where everyone has this access.
func newSite(t testing.TB, h handle, access ui.Access, brokers ...asked.Checker) *site {
	t.Helper()
	return newGuardedSite(t, h, func(*http.Request) (ui.Access, error) { return access, nil }, brokers...)
}

func newGuardedSite(
	t testing.TB, h handle, authorize func(*http.Request) (ui.Access, error), brokers ...asked.Checker,
) *site {
	t.Helper()
	log := &lines{LoggerAdapter: watermill.NopLogger{}}
	page, err := ui.New(h.db, ui.Config{
		Admin: admin.Config{QueryTimeout: patience}, Title: "Shop", Authorize: authorize, Brokers: brokers,
	}, log)
	require.NoError(t, err)
	return &site{t: t, handler: page, log: log}
}

// reply is a response of the page.
type reply struct {
	status int
	header http.Header
	body   string
}

// says checks that the page's visible text contains all texts.
func (a reply) says(t testing.TB, what string, texts ...string) {
	t.Helper()
	all := textOf(t, a.body)
	for _, text := range texts {
		if !strings.Contains(all, text) {
			t.Errorf("%s: %q is missing in: %.400s", what, text, all)
		}
	}
}

// send sends a request unchanged.
func (s *site) send(r *http.Request) reply {
	s.t.Helper()
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		s.cookie = c
	}
	a := reply{w.Code, w.Header(), w.Body.String()}
	for name, values := range a.header {
		for _, v := range values {
			assert.NotContains(s.t, name+v, "\n")
			assert.NotContains(s.t, name+v, "\r")
		}
	}
	if strings.HasPrefix(a.header.Get("Content-Type"), "text/html") {
		checkHTML(s.t, a.body)
	}
	return a
}

func (s *site) get(path string) reply {
	s.t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/ops/"+path, nil)
	if s.cookie != nil {
		r.AddCookie(s.cookie)
	}
	return s.send(r)
}

// post sends a form like the page's own.
func (s *site) post(form url.Values) reply {
	s.t.Helper()
	if s.cookie == nil {
		s.get("")
	}
	form.Set("token", s.cookie.Value)
	r := httptest.NewRequest(http.MethodPost, "/ops/act", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.AddCookie(s.cookie)
	return s.send(r)
}

// sure opens a confirmation link of the page and confirms.
func (s *site) sure(link, reason string) reply {
	s.t.Helper()
	a := s.get(link)
	require.Equal(s.t, http.StatusOK, a.status, a.body)
	form := url.Values{}
	for _, input := range elements(s.t, a.body, "input") {
		form.Add(input["name"], input["value"])
	}
	form.Set("reason", reason)
	return s.post(form)
}

// elements returns the attributes of all elements of a kind.
func elements(t testing.TB, body, kind string) (list []map[string]string) {
	t.Helper()
	return elementsOf(parsed(t, body), kind)
}

func parsed(t testing.TB, body string) *html.Node {
	t.Helper()
	root, err := html.Parse(strings.NewReader(body))
	require.NoError(t, err)
	return root
}

func elementsOf(root *html.Node, kind string) (list []map[string]string) {
	for n := range root.Descendants() {
		if n.Type == html.ElementNode && (kind == "*" || n.Data == kind) {
			of := map[string]string{"": n.Data}
			for _, a := range n.Attr {
				of[a.Key] = a.Val
			}
			list = append(list, of)
		}
	}
	return list
}

// textOf returns the visible text of a page, with single spaces.
func textOf(t testing.TB, body string) string {
	t.Helper()
	return readableOf(parsed(t, body))
}

func readableOf(root *html.Node) string {
	var b strings.Builder
	for n := range root.Descendants() {
		if n.Type == html.TextNode {
			b.WriteString(n.Data + " ")
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// checkHTML fails if a page has an element or attribute that none of its templates has, a link to another site, or
// characters that are invisible or change the direction of text.
func checkHTML(t testing.TB, body string) {
	t.Helper()
	root := parsed(t, body)
	checkText(t, readableOf(root))
	for _, e := range elementsOf(root, "*") {
		switch e[""] {
		case "script":
			assert.Regexp(t, `^script\.js\?[0-9a-f]+$`, e["src"])
		case "x7z", "iframe", "object", "embed", "base", "img", "style":
			t.Errorf("unexpected element %s", e[""])
		}
		for name, value := range e {
			if name == "x7z" || name == "style" || strings.HasPrefix(name, "on") {
				t.Errorf("the element %s has an attribute %s=%q", e[""], name, value)
			}
			if name != "value" || e["type"] == "hidden" || e["type"] == "checkbox" { // not typed by the user
				checkText(t, value)
			}
			if name == "href" || name == "src" || name == "action" {
				u, err := url.Parse(value)
				if err != nil || u.Scheme != "" || u.Host != "" || strings.HasPrefix(value, "/") {
					t.Errorf("the element %s leads to %q", e[""], value)
				}
			}
		}
	}
}

func checkText(t testing.TB, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			t.Errorf("the page has the character %U", r)
		}
	}
}

// headerTenant replaces authentication in these tests.
const headerTenant = "Test-Tenant"

// onceAround wraps a handler in the middleware. Config.Tenant reads the header.
func onceAround(t testing.TB, h handle, cfg idempotency.Config, next http.Handler) http.Handler {
	t.Helper()
	return onceLogging(t, h, cfg, nil, next)
}

func onceLogging(
	t testing.TB, h handle, cfg idempotency.Config, log watermill.LoggerAdapter, next http.Handler,
) http.Handler {
	t.Helper()
	if cfg.Tenant == nil {
		cfg.Tenant = func(r *http.Request) (string, error) { return r.Header.Get(headerTenant), nil }
	}
	once, err := idempotency.New(h.db, cfg, log)
	require.NoError(t, err)
	return once(next)
}

// ordering is a handler that books orders: a row, an event, and a different response each time.
type ordering struct {
	t     testing.TB
	h     handle
	pub   *outbox.Publisher
	calls atomic.Int64
}

func newOrdering(t testing.TB, h handle) *ordering {
	t.Helper()
	h.exec(t, createEffects)
	return &ordering{t: t, h: h, pub: newOutboxPublisher(t, h)}
}

// order writes an order and returns its number.
func (o *ordering) order(r *http.Request) (n int64, err error) {
	n = o.calls.Add(1)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return n, err
	}
	if err := o.h.execTx(r.Context(), `insert into effects (message_id) values ($1)`, string(body)); err != nil {
		return n, err
	}
	return n, o.pub.PublishContext(r.Context(), "orders", newMessage(string(body)))
}

func (o *ordering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, err := o.order(r)
	if err != nil {
		o.t.Errorf("order: %v", err)
		http.Error(w, "failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Location", fmt.Sprintf("/orders/%d", n))
	w.Header().Add("X-Many", "one")
	w.Header().Add("X-Many", "two \xff")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "order %d\x00\xff", n)
}

// done checks that n rows and n events are committed.
func (o *ordering) done(n int) {
	o.t.Helper()
	assert.Equal(o.t, n, o.h.count(o.t, "select count(*) from effects"), "rows")
	assert.Equal(o.t, n, outboxed(o.t, o.h), "events")
}

// keys counts rows of requests.
func keys(t testing.TB, h handle) int {
	t.Helper()
	return h.count(t, "select count(*) from outbox_idempotency")
}

// asking returns a request. Without a key it has no Idempotency-Key.
func asking(key, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/orders?fast=1", strings.NewReader(body))
	r.Header.Set("Content-Type", "text/plain")
	if key != "" {
		r.Header.Set(idempotency.HeaderKey, key)
	}
	return r
}

// answered is a received response.
type answered struct {
	status int
	header http.Header
	body   string
}

func (a answered) replayed() bool { return a.header.Get(idempotency.HeaderReplayed) == "true" }

// same checks that a is a replay of first.
func (a answered) same(t testing.TB, first answered) {
	t.Helper()
	assert.True(t, a.replayed(), "replayed")
	header := a.header.Clone()
	header.Del(idempotency.HeaderReplayed)
	assert.Equal(t, first, answered{a.status, header, a.body})
}

func askedOf(t testing.TB, h http.Handler, r *http.Request) answered {
	t.Helper()
	a := answer(h, r)
	body, err := io.ReadAll(a.Body)
	require.NoError(t, err)
	return answered{a.StatusCode, a.Header, string(body)}
}

// asks sends a request in the background.
func asks(t testing.TB, h http.Handler, r *http.Request) <-chan answered {
	got := make(chan answered, 1)
	go func() { got <- askedOf(t, h, r) }()
	return got
}

// waiters counts sessions that wait for a lock.
func waiters(t testing.TB, h handle) int {
	t.Helper()
	return h.count(t, `select count(*) from pg_stat_activity where datname = current_database() `+
		`and wait_event_type = 'Lock'`)
}
