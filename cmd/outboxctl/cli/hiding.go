package cli

import (
	"cmp"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// hiding is a writer that blots out secrets. What is written must not be split within one.
type hiding struct {
	to      io.Writer
	mu      sync.Mutex
	secrets []string // guarded by mu; the longest first
}

const blot = "***"

var (
	inURL  = regexp.MustCompile(`(?s)://([^/?#\s"'\x60]*?):(.*)@`)
	inPair = regexp.MustCompile(`(?i)((?:ssl)?password\s*=\s*)('(?:\\.|[^'\\])*'?|[^\s&'"]+)`)
	leaked = regexp.MustCompile(`(://[^:/@\s]*):[^@\s]+@`)
)

// learn finds the passwords in a connection string, be it well made or not, or in a list of URLs.
func (h *hiding) learn(dsn string) {
	for _, part := range append(strings.Split(dsn, ","), dsn) {
		if m := inURL.FindStringSubmatch(part); m != nil {
			h.secret(m[2])
		}
	}
	for _, m := range inPair.FindAllStringSubmatch(dsn, -1) {
		h.secret(strings.Trim(m[2], "'"))
	}
}

// secret adds one, also as it looks decoded and encoded.
func (h *hiding) secret(s string) {
	if s == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	plain, err := url.PathUnescape(s)
	if err != nil {
		plain = s
	}
	h.secrets = append(h.secrets, s, plain, url.QueryEscape(plain), url.PathEscape(plain), clean(plain))
	slices.SortFunc(h.secrets, func(x, y string) int { return cmp.Or(cmp.Compare(len(y), len(x)), strings.Compare(x, y)) })
	h.secrets = slices.Compact(h.secrets)
}

func (h *hiding) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := string(p)
	for _, s := range h.secrets {
		text = strings.ReplaceAll(text, s, blot)
	}
	text = leaked.ReplaceAllString(text, "$1:"+blot+"@")
	text = inPair.ReplaceAllString(text, "$1"+blot)
	if _, err := io.WriteString(h.to, text); err != nil {
		return 0, err
	}
	return len(p), nil
}
