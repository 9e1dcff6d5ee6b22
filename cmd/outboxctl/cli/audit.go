package cli

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/words"
)

func (a *app) audit() *cobra.Command {
	var page admin.Page
	cmd := &cobra.Command{Use: "audit", Short: "Print the audit log: who changed what, when and why, newest first"}
	cmd.Flags().IntVar(&page.Limit, "limit", 50, "number of entries, at most 1000")
	cmd.Flags().StringVar(&page.After, "page", "", "continue a list from the token printed at its end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(cmd.Context(), "", func(ad *admin.Admin) error {
			entries, next, err := ad.Audit(cmd.Context(), page)
			if err != nil {
				return err
			}
			answer := audited{entries, next}
			return a.show(answer, func() error { return a.printAudit(entries, next) })
		})
	}
	return cmd
}

// audited is a page of the log as JSON.
type audited struct {
	Entries []admin.AuditEntry `json:"entries"`
	Next    string             `json:"next,omitempty"`
}

func (a *app) printAudit(entries []admin.AuditEntry, next string) error {
	g := grid{
		heads: []string{
			"ENTRY", "AT", "ACTOR", "ROLE", "ACTION", "TOUCHED", "SKIPPED", "COMPARED", "ENDED", "OUTCOME", "WHAT",
			"REASON",
		}, empty: "the audit log is empty",
	}
	for _, e := range entries {
		ended := "yes"
		if e.EndedAt.IsZero() {
			ended = "no"
		}
		what := describe(e.Filter)
		if e.Action == "clean" {
			what = strings.Replace(what, "before ", "done before ", 1)
		}
		g.rows = append(g.rows, plain(strconv.FormatInt(e.ID, 10), moment(e.At), e.Actor, e.Role, e.Action,
			words.Number(e.Result.Touched),
			some(admin.Count{N: e.Result.Skipped}), some(admin.Count{N: e.Result.Compared}), ended, e.Outcome,
			e.Filter.In.String()+": "+what, e.Reason))
	}
	if err := g.print(a); err != nil {
		return err
	}
	if next != "" {
		a.inform("there are more: use --page %s", next)
	}
	return nil
}

const entryTimeout = 5 * time.Second

// entryOf reads an entry of the log after an act was interrupted, even if its caller no longer waits; nil if it cannot
// be read.
func entryOf(ctx context.Context, ad *admin.Admin, id int64) *admin.AuditEntry {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), entryTimeout)
	defer cancel()
	list, _, err := ad.Audit(ctx, admin.Page{Limit: 1, After: strconv.FormatInt(id+1, 10)})
	if err != nil || len(list) == 0 || list[0].ID != id {
		return nil
	}
	return &list[0]
}
