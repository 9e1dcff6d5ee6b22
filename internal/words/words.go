// Package words writes numbers, ages and foreign text for operators, the same on the page and in outboxctl.
package words

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Number writes a number with commas.
func Number(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Age writes a duration by its two largest units.
func Age(d time.Duration) string {
	switch {
	case d > -time.Second && d < time.Second:
		return "0s"
	case d < 0:
		return "-" + Age(-max(d, -math.MaxInt64)) // the smallest has no opposite
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// Clean escapes unprintable characters: control characters, those that reverse the direction of text, and bytes that
// are not UTF-8. If lines is true, it keeps line breaks and tabs.
func Clean(s string, lines bool) string {
	prints := func(r rune) bool {
		return r != utf8.RuneError && (unicode.IsPrint(r) || lines && (r == '\n' || r == '\t'))
	}
	if strings.IndexFunc(s, func(r rune) bool { return !prints(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case prints(r) || r == utf8.RuneError:
			b.WriteRune(r)
		default:
			quoted := fmt.Sprintf("%+q", r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		s = s[n:]
	}
	return b.String()
}

// Time reads a time: RFC 3339, a day, the value of a browser's field, or an age such as 90m, 36h or 7d.
func Time(s string, now time.Time) (time.Time, error) {
	for _, layout := range []string{
		time.RFC3339Nano, time.DateTime, time.DateOnly, "2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02 15:04",
	} {
		if t, err := time.ParseInLocation(layout, s, time.UTC); err == nil {
			return t.UTC(), nil
		}
	}
	if d, err := Duration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, fmt.Errorf("%q is not a time: use 2006-01-02, 2006-01-02T15:04:05Z, or an age such as 90m, "+
		"36h or 7d", s)
}

// Duration reads a duration that may contain days.
func Duration(s string) (time.Duration, error) {
	days, rest, found := strings.Cut(s, "d")
	if !found {
		return time.ParseDuration(s)
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil || rest == "" {
		return time.Duration(n) * 24 * time.Hour, err
	}
	more, err := time.ParseDuration(rest)
	return time.Duration(n)*24*time.Hour + more, err
}
