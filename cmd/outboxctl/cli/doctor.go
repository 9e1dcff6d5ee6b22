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
		Use: "doctor", Short: "Problems found, with evidence and fix",
		Long: `Problems of the tables, the forwarders, the sessions and the server, the worst first: the evidence, and the command, the SQL
statement (run it with psql) or the setting that mends it. Critical means that messages do not leave or are not handled, may be lost, or that
the server soon refuses something; a warning, that it works, but not well or not for long; an info can wait. It changes nothing. What others do it sees only if its role may
(pg_read_all_stats), and says so otherwise. With --kafka or --nats it looks at the broker as well: whether it may lose what it has
acknowledged, and whether a topic is gone. Give both flags if messages go to both. outboxctl check is the same for monitoring systems.`,
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

// examine asks the doctor, also about the broker if there is one.
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
		for i, f := range findings {                   // it may quote errors; a cure quotes none, and must stay as it is to be one
			findings[i].Evidence = a.hiding.blot(f.Evidence)
		}
		return err
	})
	return findings, err
}

func (a *app) printFindings(findings []admin.Finding) error {
	if len(findings) == 0 {
		return a.say("Healthy: no problem was found.")
	}
	styles := map[admin.Severity]lipgloss.Style{admin.Critical: red.Bold(true), admin.Warning: yellow.Bold(true), admin.Info: bold}
	for i, f := range findings {
		if i > 0 {
			if err := a.say(""); err != nil {
				return err
			}
		}
		head := styles[f.Severity].Render(fmt.Sprintf("%-8s", f.Severity)) + "  " + bold.Render(clean(f.Check))
		if _, err := fmt.Fprintf(a.out, "%s\n  %s\n  %s %s\n", head, indented(f.Evidence), faint.Render("cure:"), indented(f.Cure)); err != nil {
			return err
		}
	}
	return nil
}
