package demo

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// showTrace prints the trace of the event that waited longest, if there is one. On a bad day that event needed several
// attempts.
func showTrace(out io.Writer, spans []sdktrace.ReadOnlySpan) error {
	sends := map[trace.SpanID][]sdktrace.ReadOnlySpan{} // by the span in which the event was written
	byID := map[trace.SpanID]sdktrace.ReadOnlySpan{}
	for _, s := range spans {
		byID[s.SpanContext().SpanID()] = s
		if of := s.Parent().SpanID(); strings.HasPrefix(s.Name(), "send ") {
			if links := s.Links(); len(links) > 0 {
				of = links[0].SpanContext.SpanID()
			}
			sends[of] = append(sends[of], s)
		}
	}
	var longest sdktrace.ReadOnlySpan
	var tries int
	var waited time.Duration
	for of, list := range sends {
		created := byID[of]
		if created == nil { // by the other process
			continue
		}
		end := list[0].EndTime()
		for _, s := range list {
			if s.EndTime().After(end) {
				end = s.EndTime()
			}
		}
		if n, wait := min(len(list), 2), end.Sub(created.StartTime()); n > tries || n == tries && wait > waited {
			longest, tries, waited = created, n, wait
		}
	}
	if longest == nil {
		return nil
	}
	fmt.Fprintf(out, "\nThe trace of an event that was published %s after it was written:\n\n",
		waited.Round(time.Millisecond))
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	list := []sdktrace.ReadOnlySpan{longest}
	if handled := byID[longest.Parent().SpanID()]; handled != nil {
		list = []sdktrace.ReadOnlySpan{handled, longest}
	}
	begun := list[0].StartTime()
	attempts := sends[longest.SpanContext().SpanID()]
	slices.SortFunc(attempts, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	for i, s := range append(list, attempts...) {
		fmt.Fprintf(t, "  %s%s\tat %s\ttook %s\t%s\n", strings.Repeat("  ", min(i, len(list))), s.Name(),
			s.StartTime().Sub(begun).Round(time.Millisecond/10), s.EndTime().Sub(s.StartTime()).Round(time.Millisecond/10),
			result(s))
	}
	return t.Flush()
}

// result returns the outcome that a span recorded.
func result(s sdktrace.ReadOnlySpan) string {
	for _, kv := range s.Attributes() {
		switch string(kv.Key) {
		case "error.type":
			return kv.Value.AsString() + ": " + s.Status().Description
		case "outbox.outcome":
			return kv.Value.AsString()
		}
	}
	return "ok"
}
