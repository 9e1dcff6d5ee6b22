package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/summary"
)

// The exit codes of check are the convention of monitoring systems.
const exitUnknown = 3

// monitored marks the command whose exit code 2 does not mean wrong arguments.
const monitored = "monitored"

func (a *app) check() *cobra.Command {
	broker := brokerFlags{both: true}
	cmd := &cobra.Command{
		Use: "check", Short: "Run doctor for a monitoring system: one line and an exit code",
		Long: `Run doctor for a monitoring system, and print one line. Exit codes: 0 ok or info, 1 warning, 2 critical,
3 no response from the database, or a wrong argument.`,
		Annotations: map[string]string{monitored: "yes"},
	}
	broker.bind(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		findings, err := a.examine(cmd, &broker)
		if err != nil {
			return err
		}
		s := judge(findings)
		if err := a.tell(s); err != nil {
			return err
		}
		if s.Code > 0 {
			return exitCode(s.Code)
		}
		return nil
	}
	return cmd
}

// status is the JSON result of check.
type status struct {
	Status   string          `json:"status"` // ok, warning, critical, unknown
	Code     int             `json:"code"`
	Message  string          `json:"message"`
	Findings []admin.Finding `json:"findings"`
}

func judge(findings []admin.Finding) status {
	h := summary.Judge(findings)
	s := status{Status: "ok", Code: int(h.Severity), Message: h.String(), Findings: findings}
	if len(h.Problems) > 0 {
		s.Status, s.Message = h.Severity.String(), h.Problems[0].Check+": "+h.Problems[0].Evidence
	}
	if len(h.Problems) > 1 {
		var others []string
		times := map[string]int{}
		for _, f := range h.Problems[1:] {
			if times[f.Check]++; times[f.Check] == 1 {
				others = append(others, f.Check)
			}
		}
		for i, check := range others {
			if n := times[check]; n > 1 {
				others[i] = fmt.Sprintf("%s (%d)", check, n)
			}
		}
		s.Message += fmt.Sprintf("; and %d more: %s", len(h.Problems)-1, strings.Join(others, ", "))
	}
	return s
}

// tell prints the line.
func (a *app) tell(s status) error {
	if a.isJSON() {
		return a.json(s, true)
	}
	counts := map[admin.Severity]int{}
	for _, f := range s.Findings {
		counts[f.Severity]++
	}
	return a.say("OUTBOX %s - %s | critical=%d warning=%d info=%d", strings.ToUpper(s.Status),
		strings.ReplaceAll(strings.Join(strings.Fields(s.Message), " "), "|", "/"),
		counts[admin.Critical], counts[admin.Warning], counts[admin.Info])
}

// unknown prints the line of a check that failed.
func (a *app) unknown(err error) int {
	if err := a.tell(status{
		Status: "unknown", Code: exitUnknown, Message: a.redactor.redact(err.Error()), Findings: []admin.Finding{},
	}); err != nil {
		a.complain("%v", err)
	}
	return exitUnknown
}
