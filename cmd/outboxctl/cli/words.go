package cli

import (
	"time"

	"charm.land/lipgloss/v2"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/words"
)

// since returns the age of a time, "" for the zero time.
func since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return words.Age(max(time.Since(t), 0))
}

// until returns the time until a message is due.
func until(m admin.Message) string {
	if m.DueAt.IsZero() || m.State != admin.Failing && m.State != admin.Delayed {
		return ""
	}
	return words.Age(max(time.Until(m.DueAt), 0))
}

// moment formats a time, "" for the zero time.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// number formats a count, with a plus if there may be more.
func number(c admin.Count) string {
	if c.About {
		return "~" + words.Number(c.N)
	}
	if c.More {
		return words.Number(c.N) + "+"
	}
	return words.Number(c.N)
}

// some is number, but "" for zero.
func some(c admin.Count) string {
	if c.N == 0 && !c.More {
		return ""
	}
	return number(c)
}

// countMessages counts messages in words.
func countMessages(c admin.Count) string {
	if c.About {
		return "about " + words.Number(c.N) + " messages"
	}
	if c.N == 1 && !c.More {
		return "1 message"
	}
	if c.More {
		return words.Number(c.N) + " messages or more"
	}
	return words.Number(c.N) + " messages"
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

// nonzero is the style of a count that should be zero.
func nonzero(c admin.Count, s admin.State) lipgloss.Style {
	if c.N == 0 {
		return lipgloss.NewStyle()
	}
	return stateStyle(s)
}
