package admin

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Table is one of the three tables that hold messages. As text it is its name in lower case.
type Table int

// The tables.
const (
	Outbox Table = iota // messages to publish; the default
	Inbox               // messages that the Router's handlers received
	Queue               // messages that queue.Store keeps until they are processed

	idempotency // HTTP requests and their responses, of package idempotency; only Clean uses it
)

var tableNames = []string{"outbox", "inbox", "queue", "idempotency"}

// String returns the name of the table.
func (t Table) String() string {
	if t < 0 || int(t) >= len(tableNames) {
		return fmt.Sprintf("Table(%d)", int(t))
	}
	return tableNames[t]
}

// MarshalText returns the name of the table.
func (t Table) MarshalText() ([]byte, error) {
	if t < 0 || int(t) >= len(tableNames) {
		return nil, invalid("admin: unknown table %d: use Outbox, Inbox or Queue", int(t))
	}
	return []byte(tableNames[t]), nil
}

// UnmarshalText parses the name of a table.
func (t *Table) UnmarshalText(name []byte) error {
	i := slices.Index(tableNames, string(name))
	if i < 0 {
		return invalid("admin: unknown table %q: use outbox, inbox or queue", name)
	}
	*t = Table(i)
	return nil
}

// State is the state of a message.
type State string

// The states. A message in the inbox is never Delayed; one in the queue is never Discarded.
const (
	Ready     State = "ready"     // to be published or processed now; in the inbox: requeued, not yet redelivered
	Delayed   State = "delayed"   // waits for a time that its sender chose; then it is Ready
	Failing   State = "failing"   // failed and waits for another attempt
	Dead      State = "dead"      // gave up: not retried until it is requeued
	Done      State = "done"      // published, or processed
	Seen      State = "seen"      // in the queue: recorded as received, nothing to process
	Discarded State = "discarded" // given up by an operator or DeadRetention; deleted like done messages
)

// Filter selects the messages that match all of its fields. In a list, the zero value selects all messages of the
// outbox. An act needs All, or a field other than In and States.
type Filter struct {
	// In is the table; default Outbox.
	In Table `json:"in"`
	// States limits the states; default all in a list, while each act has its own default.
	States []State `json:"states,omitempty"`
	// IDs are values of Message.ID.
	IDs []string `json:"ids,omitempty"`
	// Topic is the exact topic; not for the inbox.
	Topic string `json:"topic,omitempty"`
	// Key is the exact ordering key; not for the inbox.
	Key string `json:"key,omitempty"`
	// Consumer is service/handler in the inbox, and the source in the queue.
	Consumer string `json:"consumer,omitempty"`
	// ErrorGroup is the ID of an ErrorGroup.
	ErrorGroup string `json:"error_group,omitempty"`
	// ErrorContains is a part of the error's text, ignoring case.
	ErrorContains string `json:"error_contains,omitempty"`
	// After (inclusive) and Before (exclusive) bound the time at which the message was written.
	After  time.Time `json:"after,omitzero"`
	Before time.Time `json:"before,omitzero"`
	// All allows an act on all messages.
	All bool `json:"all,omitempty"`

	find string // set by Find: a UUID or a key
}

// Page is a page of a list.
type Page struct {
	Limit int    // default 50, at most 1,000
	After string // Next of the previous page; "" = from the start
}

// Count is a number that was counted, perhaps up to a limit, or estimated.
type Count struct {
	N    int64 `json:"n"`
	More bool  `json:"more,omitempty"` // N or more
	// About is set if N is an estimate.
	About bool `json:"about,omitempty"`
}

// maxIDs is the largest number of ids in a filter.
const maxIDs = 10_000

// prepare checks a filter, and returns its table and the states to search one after another: "" = all of them together.
func (a *Admin) prepare(f Filter) (store, []State, error) {
	s, err := a.store(f.In)
	if err != nil {
		return s, nil, err
	}
	for field, value := range map[string]string{
		"Topic": f.Topic, "Key": f.Key, "Consumer": f.Consumer, "ErrorGroup": f.ErrorGroup, "ErrorContains": f.ErrorContains,
	} {
		if !text.Storable(value) {
			return s, nil, invalid("admin: Filter.%s must be UTF-8 without NUL", field)
		}
	}
	for field, t := range map[string]time.Time{"After": f.After, "Before": f.Before} {
		if y := t.Year(); !t.IsZero() && (y < 1 || y > 9999) {
			return s, nil, invalid("admin: Filter.%s is in the year %d: use 1 to 9999", field, y)
		}
	}
	if len(f.IDs) > maxIDs {
		return s, nil, invalid("admin: Filter.IDs names %d messages: use at most %d", len(f.IDs), maxIDs)
	}
	for _, id := range f.IDs {
		if !text.Storable(id) {
			return s, nil, invalid("admin: Filter.IDs must be UTF-8 without NUL")
		}
	}
	states := slices.Clone(f.States)
	for i, state := range states {
		if !slices.Contains(s.states, state) {
			return s, nil, invalid("admin: Filter.States has %q: a message in the %s is one of %v", state, f.In, s.states)
		}
		if slices.Contains(states[:i], state) {
			return s, nil, invalid("admin: Filter.States has %q twice", state)
		}
	}
	if len(states) == 0 {
		states = []State{""}
	}
	return s, states, s.validate(f)
}
