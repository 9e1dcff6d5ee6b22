package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/words"
)

// list returns the command that lists messages.
func (a *app) list(in admin.Table) *cobra.Command {
	var f filterFlags
	var page admin.Page
	cmd := &cobra.Command{Use: "list", Short: "List messages",
		Long: `List messages without their payloads: dead, done and discarded ones newest first, others oldest first.`}
	if in != admin.Outbox {
		cmd.Long = "List messages without their payloads, by " +
			map[bool]string{true: "source", false: "consumer"}[in == admin.Queue] +
			", oldest first."
	}
	f.bind(cmd, in)
	f.bindStates(cmd, in.States(), "")
	cmd.Flags().IntVar(&page.Limit, "limit", 50, "number of messages")
	cmd.Flags().StringVar(&page.After, "page", "", "continue a list from the token printed at its end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		filter, err := f.get(nil)
		if err != nil {
			return err
		}
		if page.Limit < 1 {
			return usagef("--limit is %d: use 1 or more", page.Limit)
		}
		return a.with(cmd.Context(), "", func(ad *admin.Admin) error {
			return a.search(cmd.Context(), page, func(ctx context.Context, p admin.Page) (*admin.List, error) {
				return ad.List(ctx, filter, p)
			}, func(list *admin.List) error { return a.printList(list) })
		})
	}
	return cmd
}

func (a *app) printList(list *admin.List) error {
	g := grid{heads: []string{"ID", "STATE", "TOPIC", "KEY", "ATTEMPTS", "AGE", "DUE IN", "ERROR"}, empty: "no messages"}
	for _, m := range list.Messages {
		row := plain(m.ID, string(m.State), m.Topic, m.Key, attempts(m), since(m.CreatedAt), until(m),
			m.LastError)
		row[1].style = stateStyle(m.State)
		g.rows = append(g.rows, row)
	}
	if err := g.print(a); err != nil {
		return err
	}
	a.goOn(list)
	return nil
}

// goOn prints how to see the next page.
func (a *app) goOn(list *admin.List) {
	if list.Next != "" {
		a.inform("there may be more%s: use --page %s", searched(list.Progress), list.Next)
	}
}

// get returns the command that shows one message.
func (a *app) get(in admin.Table) *cobra.Command {
	var payload bool
	cmd := &cobra.Command{Use: "show ID", Short: "Show one message", Args: one("message", "its id, as printed by list")}
	if in != admin.Inbox { // the inbox stores no payloads
		cmd.Flags().BoolVar(&payload, "payload", false, "print the payload too, if the role may read it")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.with(cmd.Context(), "", func(ad *admin.Admin) error {
			m, err := ad.Get(cmd.Context(), in, args[0])
			if err != nil {
				return err
			}
			if !payload {
				m.Payload = nil
			}
			shown := shown{Message: m}
			if shown.Timeline, err = ad.Timeline(cmd.Context(), in, args[0]); err != nil {
				return err
			}
			return a.show(shown, func() error {
				if err := a.printMessage(m, shown.Timeline, payload); err != nil {
					return err
				}
				return a.printTimeline(shown.Timeline)
			})
		})
	}
	return cmd
}

// printMessage prints the fields of a message.
func (a *app) printMessage(m *admin.Message, timeline []admin.Event, payload bool) error {
	written, since := m.CreatedAt, ""
	for _, e := range timeline {
		switch e.What {
		case "written":
			written = e.At // an act that requeues a message of the inbox resets the column
		case "requeue", "redrive":
			since = " since the " + e.What // the attempts are counted
		}
	}
	lines := [][2]string{
		{"id", m.ID}, {"uuid", m.UUID}, {"state", string(m.State)}, {"topic", m.Topic}, {"key", m.Key},
		{"consumer", m.Consumer},
		{"attempts", attempts(*m) + since}, {"written", moment(written)}, {"due", moment(m.DueAt)},
		{"died", moment(m.DeadAt)},
		{"settled", moment(m.SettledAt)}, {"error", m.LastError}, {"error group", m.ErrorGroup},
	}
	for _, name := range slices.Sorted(maps.Keys(m.Metadata)) {
		lines = append(lines, [2]string{"metadata", name + ": " + m.Metadata[name]})
	}
	if m.Bytes > 0 {
		lines = append(lines, [2]string{"bytes", words.Number(int64(m.Bytes))})
	}
	for _, line := range lines {
		if line[1] == "" {
			continue
		}
		if err := a.say("%-12s %s", line[0], line[1]); err != nil {
			return err
		}
	}
	switch {
	case !payload:
		return nil
	case m.Payload == nil:
		return a.say("%-12s %s", "payload", "null, or the role may not read it")
	case len(m.Payload) == 0:
		return a.say("%-12s %s", "payload", "empty")
	}
	return a.say("payload\n%s", readable(m.Payload))
}

// shown is a message and its events.
type shown struct {
	*admin.Message
	Timeline []admin.Event `json:"timeline"`
}

func (a *app) printTimeline(events []admin.Event) error {
	if err := a.say(""); err != nil {
		return err
	}
	g := grid{heads: []string{"AT", "WHAT", "BY", "DETAIL"}}
	for _, e := range events {
		g.rows = append(g.rows, plain(moment(e.At), what(e), e.By, detail(e)))
	}
	return g.print(a)
}

// what names an event.
func what(e admin.Event) string {
	if e.Attempt > 0 {
		return e.What + ", attempt " + strconv.Itoa(e.Attempt)
	}
	return strings.ReplaceAll(e.What, "_", "-")
}

// detail describes the rest of an event.
func detail(e admin.Event) string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+value)
		}
	}
	add("", e.Error)
	add("", e.Reason)
	add("trace ", e.TraceID)
	add("message ", e.DeadLetter)
	add("until ", moment(e.Until))
	if e.AuditID > 0 {
		add("entry ", words.Number(e.AuditID))
	}
	return strings.Join(parts, "; ")
}

// readable formats a payload for people: JSON unchanged, other bytes escaped.
func readable(payload []byte) string {
	if utf8.Valid(payload) || json.Valid(payload) {
		return string(payload)
	}
	return strconv.QuoteToASCII(string(payload))
}

// attempts formats the number of attempts, and of those that ended a process or its lease.
func attempts(m admin.Message) string {
	if m.Crashes == 0 {
		return strconv.Itoa(m.Attempts)
	}
	return fmt.Sprintf("%d (crashes: %d)", m.Attempts, m.Crashes)
}
