package cli

import (
	"fmt"

	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
)

func (a *app) doctor() *cobra.Command {
	broker := brokerFlags{both: true}
	cmd := &cobra.Command{
		Use: "doctor", Short: "Report problems, each with evidence and cure",
		Long: `Report problems, worst first, each with evidence and cure, and change nothing.

Severities:
  critical  messages are not published or handled, may be lost, or the server will soon refuse work
  warning   it works, but not well, or not for long
  info      it can wait

To see other roles' sessions, the role needs pg_read_all_stats. With --kafka or --nats, doctor also checks
whether the broker can lose acknowledged messages or lacks a topic.`,
	}
	broker.bind(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		findings, err := a.examine(cmd, &broker)
		if err != nil {
			return err
		}
		return a.show(map[string]any{"findings": findings}, func() error { return a.printFindings(findings) })
	}
	return cmd
}

// examine runs doctor, with the broker if one is given.
func (a *app) examine(cmd *cobra.Command, broker *brokerFlags) (findings []admin.Finding, err error) {
	if err := broker.read(a, cmd); err != nil {
		return nil, err
	}
	brokers, closeAll, err := broker.checkers()
	defer closeAll()
	if err != nil {
		return nil, &usageError{err}
	}
	err = a.with(cmd.Context(), "", func(ad *admin.Admin) error {
		found, err := ad.Doctor(cmd.Context(), brokers...)
		findings = append([]admin.Finding{}, found...) // [] in JSON, not null
		for i, f := range findings {
			// Evidence may quote errors; a cure does not, and must stay unchanged to work.
			findings[i].Evidence = a.redactor.redact(f.Evidence)
		}
		return err
	})
	return findings, err
}

func (a *app) printFindings(findings []admin.Finding) error {
	if len(findings) == 0 {
		return a.say("Healthy: no problems found.")
	}
	styles := map[admin.Severity]lipgloss.Style{
		admin.Critical: red.Bold(true), admin.Warning: yellow.Bold(true), admin.Info: bold,
	}
	for i, f := range findings {
		if i > 0 {
			if err := a.say(""); err != nil {
				return err
			}
		}
		head := styles[f.Severity].Render(fmt.Sprintf("%-8s", f.Severity)) + "  " + bold.Render(clean(f.Check))
		if _, err := fmt.Fprintf(a.out, "%s\n  %s\n  %s %s\n", head, indented(f.Evidence), faint.Render("cure:"),
			indented(f.Cure)); err != nil {
			return err
		}
	}
	return nil
}
