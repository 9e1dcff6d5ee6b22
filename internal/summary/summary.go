// Package summary describes values of package admin, in the same words on the page and in outboxctl.
package summary

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/broker"
)

// Health is the summary of findings, for the page's heading, the exit code of outboxctl check and health probes.
type Health struct {
	Severity broker.Severity // severity of the worst problem; Info if there is none
	Problems []admin.Finding // findings worse than Info, worst first
}

// Judge summarises the findings of Doctor.
func Judge(findings []admin.Finding) Health {
	h := Health{Problems: slices.DeleteFunc(slices.Clone(findings), func(f admin.Finding) bool {
		return f.Severity <= broker.Info
	})}
	slices.SortStableFunc(h.Problems, func(x, y admin.Finding) int { return int(y.Severity - x.Severity) })
	if len(h.Problems) > 0 {
		h.Severity = h.Problems[0].Severity
	}
	return h
}

// String returns "healthy", or the title of the worst problem and the number of others, counting one for each Check.
func (h Health) String() string {
	if len(h.Problems) == 0 {
		return "healthy"
	}
	others := map[string]bool{}
	for _, f := range h.Problems {
		others[f.Check] = true
	}
	if len(others) == 1 {
		return h.Problems[0].Title
	}
	return fmt.Sprintf("%s, and %d more", h.Problems[0].Title, len(others)-1)
}

// Filter describes a filter, field by field.
func Filter(f admin.Filter) (list [][2]string) {
	add := func(name, value string) {
		if value != "" {
			list = append(list, [2]string{name, value})
		}
	}
	states := make([]string, len(f.States))
	for i, state := range f.States {
		states[i] = string(state)
	}
	add("state", strings.Join(states, ", "))
	add("id", strings.Join(f.IDs, ", "))
	add("topic", f.Topic)
	add("key", f.Key)
	add(map[bool]string{true: "source", false: "consumer"}[f.In == admin.Queue], f.Consumer)
	add("error group", f.ErrorGroup)
	add("error containing", f.ErrorContains)
	for _, t := range []struct {
		name string
		at   time.Time
	}{{"from", f.After}, {"before", f.Before}} {
		if !t.at.IsZero() {
			add(t.name, t.at.UTC().Format("2006-01-02 15:04:05Z"))
		}
	}
	return list
}

// Since returns when the message entered its state, as far as the table shows: when it was settled, died or was
// written.
func Since(m *admin.Message) time.Time {
	switch {
	case !m.SettledAt.IsZero():
		return m.SettledAt
	case m.State == admin.Dead && !m.DeadAt.IsZero():
		return m.DeadAt
	}
	return m.CreatedAt
}
