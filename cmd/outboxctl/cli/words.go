package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"charm.land/lipgloss/v2"

	"github.com/millrace-go/watermill-outbox/admin"
)

// age writes a duration by its two largest units.
func age(d time.Duration) string {
	switch {
	case d > -time.Second && d < time.Second:
		return "0s"
	case d < 0:
		return "-" + age(-max(d, -math.MaxInt64)) // the least has no opposite
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// since is the age of a time, "" for the zero one.
func since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return age(max(time.Since(t), 0))
}

// until is how long a message waits for its time.
func until(m admin.Message) string {
	if m.DueAt.IsZero() || m.State != admin.Failing && m.State != admin.Delayed {
		return ""
	}
	return age(max(time.Until(m.DueAt), 0))
}

// moment writes a time, "" for the zero one.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// number writes a count; those of which there may be more get a plus.
func number(c admin.Count) string {
	if c.About {
		return "~" + digits(c.N)
	}
	if c.More {
		return digits(c.N) + "+"
	}
	return digits(c.N)
}

// digits writes a number with commas.
func digits(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// some is number, and "" for none.
func some(c admin.Count) string {
	if c.N == 0 && !c.More {
		return ""
	}
	return number(c)
}

// countMessages counts messages in words.
func countMessages(c admin.Count) string {
	if c.About {
		return "about " + digits(c.N) + " messages"
	}
	if c.N == 1 && !c.More {
		return "1 message"
	}
	if c.More {
		return digits(c.N) + " messages or more"
	}
	return digits(c.N) + " messages"
}

func stateStyle(s admin.State) lipgloss.Style {
	switch s {
	case admin.Dead:
		return red
	case admin.Failing:
		return yellow
	case admin.Done:
		return green
	}
	return lipgloss.NewStyle()
}

// when reads a time: RFC 3339, a day, or how long ago, as in 90m, 36h or 7d.
func when(s string, now time.Time) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, time.UTC); err == nil {
			return t, nil
		}
	}
	d, err := long(s)
	if err != nil || d < 0 {
		return time.Time{}, fmt.Errorf("%q is not a time: use 2006-01-02, 2006-01-02T15:04:05Z, "+
			"or an age such as 90m, 36h or 7d", s)
	}
	return now.Add(-d), nil
}

// long reads a duration that may have days.
func long(s string) (time.Duration, error) {
	days, rest, found := strings.Cut(s, "d")
	if !found {
		return time.ParseDuration(s)
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil {
		return 0, err
	}
	d := time.Duration(n) * 24 * time.Hour
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	return d + more, err
}

// nonzero is the style of a state, for a count that is better none.
func nonzero(c admin.Count, s admin.State) lipgloss.Style {
	if c.N == 0 {
		return lipgloss.NewStyle()
	}
	return stateStyle(s)
}
