package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Event is one event in the timeline of a message.
type Event struct {
	// At is when it happened; zero for a failure whose time was not kept.
	At time.Time `json:"at,omitzero"`
	// What is one of written (in the inbox: first delivered), delayed, failed, published, processed, died, dead_letter,
	// due, or an act's AuditEntry.Action.
	What    string `json:"what"`
	Attempt int    `json:"attempt,omitempty"` // for failed: its number
	// Error is the error of failed, or in the queue of died. It has the first 256 characters, but all of the last
	// error.
	Error   string `json:"error,omitempty"`
	By      string `json:"by,omitempty"`     // failed: the forwarder; act: the actor; dead_letter: its writer
	Reason  string `json:"reason,omitempty"` // for an act
	AuditID int64  `json:"audit_id,omitempty"`
	// Until is when a delayed message or a retry is due.
	Until      time.Time `json:"until,omitzero"`
	DeadLetter string    `json:"dead_letter,omitempty"` // for dead_letter: its id in the outbox
	TraceID    string    `json:"trace_id,omitempty"`    // for written: the trace ID of the message's W3C trace context

	guessed bool // At only places the event in the order
}

// Timeline returns the events of a message, oldest first. Each table keeps the last 20 failed attempts and acts of a
// message. Errors are those of Get.
func (a *Admin) Timeline(ctx context.Context, t Table, id string) ([]Event, error) {
	s, err := a.store(t)
	if err != nil {
		return nil, err
	}
	places, err := s.places([]string{id})
	if err != nil {
		return nil, err
	}
	list, err := s.show(ctx, places)
	if err == nil && len(list) == 0 {
		return nil, fmt.Errorf("%w: %s %q", ErrNotFound, t, id)
	}
	var events []Event
	if err == nil {
		events, err = s.events(ctx, &list[0], places[0])
	}
	if err != nil {
		return nil, fmt.Errorf("timeline: %w", err)
	}
	slices.SortStableFunc(events, func(x, y Event) int { return x.At.Compare(y.At) })
	for i := range events {
		if events[i].guessed {
			events[i].At = time.Time{}
		}
	}
	return events, nil
}

func (s store) events(ctx context.Context, m *Message, p place) (events []Event, err error) {
	if until, err := time.Parse(time.RFC3339, m.Metadata.Get(delay.DelayedUntilKey)); err == nil {
		events = append(events, Event{At: m.CreatedAt, What: "delayed", Until: until})
	}
	history, err := s.history(ctx, p)
	if err != nil {
		return nil, err
	}
	first := Event{At: m.CreatedAt, What: "written", TraceID: traceOf(m.Metadata.Get("traceparent"))}
	if !slices.ContainsFunc(history, func(e Event) bool { return e.What == "written" }) {
		events = slices.Insert(events, 0, first)
	}
	recorded, last := 0, -1
	for i := range history {
		if history[i].What == "failed" {
			recorded, last = history[i].Attempt, i
		}
		// No retry follows the attempt after which the message died.
		switch {
		case history[i].What == "died" && i > 0:
			history[i-1].Until = time.Time{}
		case i+1 == len(history) && m.State == Dead:
			history[i].Until = time.Time{}
		}
	}
	if last >= 0 && strings.HasPrefix(m.LastError, history[last].Error) { // acts and releases leave another text
		history[last].Error = m.LastError
	}
	events = append(events, history...)
	if m.Attempts > recorded && recorded == 0 && m.LastError != "" { // only the text is known, not the time
		at := m.DeadAt
		if at.IsZero() {
			at = m.CreatedAt
		}
		events = append(events, Event{
			At: at, What: "failed", Attempt: m.Attempts, Error: m.LastError, guessed: true,
		})
	}
	if !m.DeadAt.IsZero() && (m.State != Discarded || len(history) == 0 || history[len(history)-1].AuditID == 0) {
		events = append(events, Event{At: m.DeadAt, What: "died"}) // discarding records the earlier death
	}
	deadLetters, err := s.deadLettersOf(ctx, m.UUID, events)
	if err != nil {
		return nil, err
	}
	events = append(events, deadLetters...)
	if !m.SettledAt.IsZero() && m.State != Discarded {
		what := "processed"
		if m.In == Outbox {
			what = "published"
		}
		events = append(events, Event{At: m.SettledAt, What: what})
	}
	if (m.State == Failing || m.State == Delayed) && !m.DueAt.IsZero() {
		events = append(events, Event{At: m.DueAt, What: "due"})
	}
	return events, nil
}

// historyEntry is an entry of a history.
type historyEntry struct {
	At        time.Time `json:"at"`
	Attempt   int       `json:"attempt"`
	Error     string    `json:"error"`
	By        string    `json:"by"`
	Delay     float64   `json:"delay"`
	Act       string    `json:"act"`
	Audit     int64     `json:"audit"`
	Published time.Time `json:"published"`
	Died      time.Time `json:"died"`
	Received  time.Time `json:"received"` // set by the first act in the inbox
}

// failed returns the events of a failed attempt: the failure and possibly the death, or a death without an attempt.
func (h historyEntry) failed() (events []Event) {
	e := Event{At: h.At, What: "failed", Attempt: h.Attempt, Error: h.Error, By: h.By}
	if h.Died.IsZero() && h.Delay > 0 {
		e.Until = h.At.Add(time.Duration(h.Delay * float64(time.Second)))
	}
	died := Event{At: h.Died, What: "died", Error: h.Error}
	if h.Attempt > 0 || h.Died.IsZero() {
		events, died.Error = append(events, e), ""
	}
	if !h.Died.IsZero() {
		events = append(events, died)
	}
	return events
}

// history reads the history of a message, with the actors of its acts.
func (s store) history(ctx context.Context, p place) (events []Event, err error) {
	var stored []byte
	err = s.collect(ctx, func(rows drive.Rows) error { return rows.Scan(&stored) }, s.sql.History, p.Owner, p.Name)
	if state := text.SQLState(err); state == text.UndefinedColumn || state == text.InsufficientPrivilege {
		return nil, nil // the database, or the role, is at an older migration
	}
	var entries []historyEntry
	if err != nil || json.Unmarshal(stored, &entries) != nil { // rows written by hand may hold anything
		return nil, err
	}
	var acts []int64
	for _, h := range entries {
		if h.Act == "" {
			events = append(events, h.failed()...)
			continue
		}
		if len(acts) == 0 && !h.Received.IsZero() {
			events = slices.Insert(events, 0, Event{At: h.Received, What: "written"})
		}
		for what, at := range map[string]time.Time{"published": h.Published, "died": h.Died} {
			if !at.IsZero() {
				events = append(events, Event{At: at, What: what})
			}
		}
		events = append(events, Event{At: h.At, What: h.Act, AuditID: h.Audit})
		acts = append(acts, h.Audit)
	}
	if len(acts) == 0 {
		return events, nil
	}
	err = s.collect(ctx, func(rows drive.Rows) error {
		var id int64
		var actor, reason string
		err := rows.Scan(&id, &actor, &reason)
		for i := range events {
			if events[i].AuditID == id {
				events[i].By, events[i].Reason = actor, reason
			}
		}
		return err
	}, sqltext.ActsOf, acts)
	return events, err
}

// traceOf returns the trace ID of a W3C traceparent; "" if it has none.
func traceOf(parent string) string {
	if parts := strings.Split(parent, "-"); len(parts) >= 4 && len(parts[1]) == 32 {
		return parts[1]
	}
	return ""
}

// deadLetterWithin is the largest difference between the times of a death and of its dead letter, which one transaction
// writes.
const deadLetterWithin = 10 * time.Second

// deadLettersOf finds the dead letters of each death among the events of a message. Two deaths may be so close that
// both find the same dead letters.
func (s store) deadLettersOf(ctx context.Context, uuid string, events []Event) (deadLetters []Event, err error) {
	for _, e := range events {
		if e.What != "died" {
			continue
		}
		found, err := s.deadLetters(ctx, e.At, []string{uuid})
		if err != nil {
			return nil, err
		}
		for _, deadLetter := range found {
			if !slices.ContainsFunc(deadLetters, func(l Event) bool { return l.DeadLetter == deadLetter.DeadLetter }) {
				deadLetters = append(deadLetters, deadLetter)
			}
		}
	}
	return deadLetters, nil
}

// deadLetters searches for about a second for the dead letters written to the outbox when their messages died.
func (a *Admin) deadLetters(ctx context.Context, died time.Time, uuids []string) (events []Event, err error) {
	from, err := a.writtenFrom(ctx, died.Add(-deadLetterWithin))
	if err != nil {
		return nil, err
	}
	to, err := a.writtenFrom(ctx, died.Add(deadLetterWithin))
	if err != nil {
		return nil, err
	}
	for until := time.Now().Add(searchTime); from <= to && err == nil && time.Now().Before(until); from += matchingStep {
		err = a.collect(ctx, func(rows drive.Rows) error {
			e := Event{What: "dead_letter"}
			var id int64
			var uuid, service, handler string
			err := rows.Scan(&id, &uuid, &service, &handler, &e.At)
			e.DeadLetter, e.By = strconv.FormatInt(id, 10), strings.Trim(service+"/"+handler, "/")
			events = append(events, e)
			return err
		}, sqltext.DeadLettersWithin, from, min(to, from+matchingStep-1), uuids)
	}
	return events, err
}

// writtenFrom returns approximately the first id written at or after a time.
func (a *Admin) writtenFrom(ctx context.Context, at time.Time) (first int64, err error) {
	var low, high int64
	err = a.collect(ctx, func(rows drive.Rows) error { return rows.Scan(&low, &first, &high) }, sqltext.TrendBounds,
		stamp(at))
	return first, err
}
