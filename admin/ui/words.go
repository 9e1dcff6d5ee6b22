package ui

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
	words_ "github.com/millrace-go/watermill-outbox/internal/words"
)

// visible shows invisible and bidirectional control characters as numbers, so that message data cannot pass for
// something else.
func visible(s string) string { return reveal(s, false) }

func reveal(s string, lines bool) string { return words_.Clean(s, lines) }

// number formats a number with thousands separators.
func number(n int64) string { return words_.Number(n) }

// count formats a count that may have stopped at a limit.
func count(c admin.Count) string {
	if c.About {
		return "~" + roughly(c.N)
	}
	if c.More {
		return number(c.N) + "+"
	}
	return number(c.N)
}

// roughly formats a number with two significant digits.
func roughly(n int64) string {
	unit := int64(1)
	for n/unit >= 100 {
		unit *= 10
	}
	n = (n + unit/2) / unit * unit
	if n < 1_000_000 {
		return number(n)
	}
	return strings.TrimSuffix(strconv.FormatFloat(float64(n)/1e6, 'f', 1, 64), ".0") + " million"
}

// rate formats a number per second.
func rate(r float64) string {
	switch {
	case r > 0 && r < 0.05:
		return "<0.1"
	case r > 0 && r < 9.95:
		return strconv.FormatFloat(r, 'f', 1, 64)
	}
	return number(int64(r + 0.5))
}

// span formats a duration.
func span(d time.Duration) string { return words_.Age(d.Round(time.Second)) }

// about is span with only the largest unit.
func about(d time.Duration) string { return regexp.MustCompile(`^\d+[a-z]`).FindString(span(d)) }

// ago formats a time relative to now.
func ago(now, t time.Time) string {
	switch d := now.Sub(t); {
	case d < -time.Second:
		return "in " + span(-d)
	case d < time.Second:
		return "now"
	default:
		return span(d) + " ago"
	}
}

// stamp formats a time in full.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// happened is the title of an event of a message.
func happened(what string) string {
	words := map[string]string{
		"written": "Written", "delayed": "Delayed", "failed": "Failed", "published": "Published",
		"processed": "Processed", "died": "Died", "dead_letter": "Dead letter written", "due": "Due",
		"reconcile": "Published again",
	}
	if word, known := words[what]; known {
		return word
	}
	if v := verbOf(what); v != nil {
		return v.Past
	}
	return visible(what)
}
