package integration_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"unicode"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	asked "github.com/millrace-go/watermill-outbox/broker"
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

// newSite returns the page of a handle's tables, where everybody has this access.
func newSite(t testing.TB, h handle, access ui.Access, brokers ...asked.Checker) *site {
	t.Helper()
	return newGuardedSite(t, h, func(*http.Request) (ui.Access, error) { return access, nil }, brokers...)
}

func newGuardedSite(
	t testing.TB, h handle, authorize func(*http.Request) (ui.Access, error), brokers ...asked.Checker,
) *site {
	t.Helper()
	a, err := admin.New(h.db, admin.Config{QueryTimeout: patience}, nil)
	require.NoError(t, err)
	log := &lines{LoggerAdapter: watermill.NopLogger{}}
	page, err := ui.New(a, ui.Config{Title: "Shop", Authorize: authorize, Brokers: brokers}, log)
	require.NoError(t, err)
	return &site{t: t, handler: page, log: log}
}

// reply is a response of the page.
type reply struct {
	status int
	header http.Header
	body   string
}

// says asserts that the page's visible text contains all texts.
func (a reply) says(t testing.TB, what string, texts ...string) {
	t.Helper()
	all := textOf(t, a.body)
	for _, text := range texts {
		if !strings.Contains(all, text) {
			t.Errorf("%s: there is no %q in: %.400s", what, text, all)
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
