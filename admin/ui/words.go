package ui

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-go/watermill-outbox/admin"
)

// visible shows characters by their numbers that show nothing, or turn the text around: what comes from messages must
// not look like something else.
func visible(s string) string { return reveal(s, false) }

// reveal is visible; lines keeps the ends of lines and tabs.
func reveal(s string, lines bool) string {
	clean := func(r rune) bool {
		return r != utf8.RuneError && (unicode.IsPrint(r) || lines && (r == '\n' || r == '\t'))
	}
	if strings.IndexFunc(s, func(r rune) bool { return !clean(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case clean(r) || r == utf8.RuneError:
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += n
	}
	return b.String()
}

// number writes a number with its thousands apart.
func number(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// count writes a number that was counted up to a limit.
func count(c admin.Count) string {
	if c.About {
		return "~" + roughly(c.N)
	}
	if c.More {
		return number(c.N) + "+"
	}
	return number(c.N)
}

// roughly writes a number with two digits that mean something.
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

// rate writes how many there are a second.
func rate(r float64) string {
	switch {
	case r > 0 && r < 0.05:
		return "<0.1"
	case r > 0 && r < 9.95:
		return strconv.FormatFloat(r, 'f', 1, 64)
	}
	return number(int64(r + 0.5))
}

// span writes how long something lasts, in the two largest units.
func span(d time.Duration) string {
	switch s := int64(d.Round(time.Second) / time.Second); {
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return two(s/60, "min", s%60, "s", 10)
	case s < 86400:
		return two(s/3600, "h", s%3600/60, "min", 10)
	default:
		return two(s/86400, "d", s%86400/3600, "h", 10)
	}
}

// about is span in the largest unit alone.
func about(d time.Duration) string {
	f := strings.Fields(span(d))
	return f[0] + " " + f[1]
}

// two leaves the smaller unit out where the larger one says enough.
func two(large int64, unit string, small int64, smaller string, enough int64) string {
	if small == 0 || large >= enough {
		return fmt.Sprintf("%d %s", large, unit)
	}
	return fmt.Sprintf("%d %s %d %s", large, unit, small, smaller)
}

// ago writes when something was, or will be, as seen from now.
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

// stamp writes a time in full.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// happened is the word for an event of a message.
func happened(what string) string {
	words := map[string]string{
		"written": "Written", "delayed": "Delayed", "failed": "Failed", "published": "Published",
		"processed": "Processed", "died": "Died", "letter": "Dead letter written", "due": "Due",
		"reconcile": "Published again", "redrive_topic": "Redriven from the dead-letter topic",
	}
	if word, known := words[what]; known {
		return word
	}
	if v := verbOf(what); v != nil {
		return v.past
	}
	return visible(what)
}
