package cli

import (
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
)

func (a *app) keys() *cobra.Command {
	cmd := &cobra.Command{Use: "keys", Short: "Blocked ordering keys of the outbox"}
	cmd.AddCommand(a.blockedKeys(), a.skipKeys())
	return cmd
}

func (a *app) blockedKeys() *cobra.Command {
	var f filterFlags
	var dead bool
	var limit int
	cmd := &cobra.Command{
		Use: "blocked", Short: "List keys whose first message failed and waits for another attempt",
		Long: `List keys that a failed message blocks until its next attempt, oldest message first.`,
	}
	f.bind(cmd, admin.Outbox)
	cmd.Flags().BoolVar(&dead, "dead", false, "list keys blocked by a dead message instead (BlockKeyOnDead)")
	cmd.Flags().IntVar(&limit, "limit", 50, "number of keys, at most 1000")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		filter, err := f.get(nil)
		if err != nil {
			return err
		}
		if limit < 1 || limit > 1000 {
			return usagef("--limit is %d: use 1 to 1000", limit)
		}
		filter.States = []admin.State{admin.Failing}
		if dead {
			filter.States = []admin.State{admin.Dead}
		}
		return a.with(cmd.Context(), "", func(ad *admin.Admin) error {
			heads, more, err := ad.BlockedKeys(cmd.Context(), filter, limit)
			if err != nil {
				return err
			}
			return a.show(map[string]any{"heads": heads, "more": more}, func() error { return a.printKeys(heads, more) })
		})
	}
	return cmd
}

func (a *app) printKeys(heads []admin.Message, more bool) error {
	g := grid{heads: []string{"KEY", "FIRST", "TOPIC", "ATTEMPTS", "AGE", "RETRY IN", "ERROR"}, empty: "no key is blocked"}
	for _, m := range heads {
		g.rows = append(g.rows, plain(m.Key, m.ID, m.Topic, strconv.Itoa(m.Attempts), since(m.CreatedAt), until(m),
			m.LastError))
	}
	if err := g.print(a); err != nil {
		return err
	}
	if more {
		a.inform("there are more: raise --limit")
	}
	return nil
}

func (a *app) skipKeys() *cobra.Command {
	verbs := admin.Verbs(admin.Outbox)
	v := verbs[slices.IndexFunc(verbs, func(v admin.Verb) bool { return v.Heads })]
	cmd := a.act(admin.Outbox, verbOf(v, admin.Outbox, "skip",
		"  outboxctl keys skip --key order/42 --reason 'refunded by hand'"), "")
	cmd.Args = cobra.NoArgs
	return cmd
}
