package cli

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/summary"
)

// fewFound is the number of messages up to which find describes each; more become a table.
const fewFound = 3

func (a *app) find() *cobra.Command {
	var page admin.Page
	cmd := &cobra.Command{
		Use: "find UUID", Short: "Find a message by UUID, id or key in the outbox, the inbox and the queue",
		Long: `Find a message in all tables by UUID, id or ordering key, and with a UUID its dead letter. Without an index
by UUID, searching millions of messages takes seconds, newest first.`,
		Args: one("message", "its UUID, its id, or its key"),
	}
	cmd.Flags().IntVar(&page.Limit, "limit", 50, "number of messages")
	cmd.Flags().StringVar(&page.After, "page", "", "continue a list from the token printed at its end")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if page.Limit < 1 {
			return usagef("--limit is %d: use 1 or more", page.Limit)
		}
		return a.with(cmd.Context(), "", func(ad *admin.Admin) error {
			found := page.After != "" // the results of earlier pages are unknown
			err := a.search(cmd.Context(), page, func(ctx context.Context, p admin.Page) (*admin.List, error) {
				l, err := ad.Find(ctx, args[0], p)
				if err != nil {
					return l, err
				}
				if found = found || len(l.Messages) > 0; inOutbox(l) { // enough: a UUID belongs to one message
					err = errFound
				}
				return l, err
			}, func(l *admin.List) error { return a.printFound(cmd.Context(), ad, l) })
			if err == nil && !found {
				return exitCode(exitFailed)
			}
			return err
		})
	}
	return cmd
}

func inOutbox(l *admin.List) bool {
	for _, m := range l.Messages {
		if m.In == admin.Outbox {
			return true
		}
	}
	return false
}

// printFound describes a few messages, or lists many.
func (a *app) printFound(ctx context.Context, ad *admin.Admin, list *admin.List) error {
	if n := len(list.Messages); n == 0 || n > fewFound {
		g := grid{heads: []string{"IN", "ID", "STATE", "SINCE", "TOPIC", "KEY", "ATTEMPTS", "ERROR"}, empty: "not found"}
		if list.Next != "" {
			g.empty = "not found yet"
		}
		for _, m := range list.Messages {
			row := plain(m.In.String(), m.ID, string(m.State), since(summary.Since(&m)), m.Topic, m.Key,
				strconv.Itoa(m.Attempts), m.LastError)
			row[2].style = stateStyle(m.State)
			g.rows = append(g.rows, row)
		}
		if err := g.print(a); err != nil {
			return err
		}
	} else {
		for i, m := range list.Messages {
			if i > 0 {
				if err := a.say(""); err != nil {
					return err
				}
			}
			if err := a.say("%-12s the %s, %s for %s", "found in", m.In, string(m.State), since(summary.Since(&m))); err != nil {
				return err
			}
			var timeline []admin.Event
			if m.In == admin.Inbox {
				timeline, _ = ad.Timeline(ctx, m.In, m.ID) // without it, the time is that of the last act
			}
			if err := a.printMessage(&m, timeline, false); err != nil {
				return err
			}
		}
	}
	a.goOn(list)
	return nil
}
