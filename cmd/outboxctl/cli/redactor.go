package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// redactor is a writer that redacts secrets. A secret must not be split between two calls of Write.
type redactor struct {
	to      io.Writer
	mu      sync.Mutex
	secrets []string // guarded by mu; the longest first
}

var (
	inURL  = regexp.MustCompile(`(?s)://([^/?#\s"'\x60]*?):(.*)@`)
	inPair = regexp.MustCompile(`(?i)((?:ssl)?password\s*=\s*)('(?:\\.|[^'\\])*'?|[^\s&'"]+)`)
	token  = regexp.MustCompile(`://([^/@:\s]+)@`)
)

// addDSN finds the passwords in a connection string, valid or not, or in a list of URLs.
func (h *redactor) addDSN(dsn string) {
	for _, part := range append(strings.Split(dsn, ","), dsn) {
		if m := inURL.FindStringSubmatch(part); m != nil {
			h.addSecret(m[2])
		}
	}
	for _, m := range inPair.FindAllStringSubmatch(dsn, -1) {
		h.addSecret(strings.Trim(m[2], "'"))
	}
}

// addBroker finds the passwords in addresses of brokers, which need no scheme, and NATS tokens: a user without a
// password.
func (h *redactor) addBroker(addresses string) {
	h.addDSN(addresses)
	for s := range strings.SplitSeq(addresses, ",") {
		if !strings.Contains(s, "://") {
			s = "://" + s
		}
		h.addDSN(s)
		for _, m := range token.FindAllStringSubmatch(s, -1) {
			h.addSecret(m[1])
		}
	}
}

// addSecret adds a secret, also in decoded, encoded and quoted form, as errors and logs show it.
func (h *redactor) addSecret(s string) {
	if s == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	plain, err := url.PathUnescape(s)
	if err != nil {
		plain = s
	}
	forms := []string{
		s, plain, url.QueryEscape(plain), url.PathEscape(plain), url.UserPassword("", plain).String()[1:], clean(plain),
	}
	for range 2 { // a log quotes an error, which may contain quotes itself
		for _, form := range forms {
			forms = append(forms, unquoted(strconv.Quote(form)), unquoted(inJSON(form)))
		}
	}
	h.secrets = append(h.secrets, forms...)
	slices.SortFunc(h.secrets, func(x, y string) int { return cmp.Or(cmp.Compare(len(y), len(x)), strings.Compare(x, y)) })
	h.secrets = slices.Compact(h.secrets)
}

func inJSON(s string) string {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(s) // cannot fail
	return string(printable(bytes.TrimSpace(b.Bytes())))
}

func unquoted(s string) string { return s[1 : len(s)-1] }

func (h *redactor) Write(p []byte) (int, error) {
	if _, err := io.WriteString(h.to, h.redact(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// redact hides the secrets in a text.
func (h *redactor) redact(said string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.secrets {
		said = strings.ReplaceAll(said, s, text.Redacted)
	}
	return text.Redact(said)
}
