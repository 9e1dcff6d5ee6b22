package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/internal/words"
)

// Doctor returns problems of the tables, the forwarders and the server, worst first. It changes nothing, except that it
// sends one notification to test its delivery. Without pg_read_all_stats it cannot see other sessions, and reports
// that. A failed check is a finding too. Pass all brokers that messages go to: a topic with published messages that
// exists on none of them is a finding. Without brokers their settings are not checked.
//
// It returns an error, with the findings so far, if the database does not respond or ctx ends.
func (a *Admin) Doctor(ctx context.Context, brokers ...broker.Checker) ([]Finding, error) {
	e := doctorRun{Admin: a, brokers: brokers}
	for _, c := range checks {
		if err := e.run(ctx, c.check); err != nil {
			if state := text.SQLState(err); ctx.Err() != nil || state == "" && !errors.Is(err, context.DeadlineExceeded) {
				sortFindings(e.found)
				return e.found, fmt.Errorf("doctor: %s: %w", c.name, err)
			}
			if !e.damaged {
				e.find(c.name, Warning, "check failed: "+err.Error(), "fix the cause that the error names")
			}
		}
		if e.over {
			break
		}
	}
	sortFindings(e.found)
	return e.found, nil
}

// checks run in this order: checks that explain others come first. A check's name is also the name of its findings,
// unless it reports several kinds.
var checks = []struct {
	name  string
	check func(*doctorRun, context.Context) error
}{
	{"schema", (*doctorRun).checkSchema},
	{"privileges", (*doctorRun).checkPrivileges},
	{"commit_waits", (*doctorRun).checkCommits},
	{"obstacles", (*doctorRun).checkObstacles},
	{"sessions", (*doctorRun).checkSessions},
	{"prepared_transactions", (*doctorRun).checkPrepared},
	{"forwarders", (*doctorRun).checkForwarders},
	{"topics", (*doctorRun).checkTopics},
	{"failing", (*doctorRun).checkFailing},
	{"failing", (*doctorRun).checkIncoming},
	{"dead", (*doctorRun).checkDead},
	{"dead_discarded", (*doctorRun).checkDiscarded},
	{"queue", (*doctorRun).checkQueue},
	{"partition_blocked", (*doctorRun).checkBlocked},
	{"vacuum", (*doctorRun).checkVacuum},
	{"retention", (*doctorRun).checkRetention},
	{"partitions", (*doctorRun).checkPartitions},
	{"roles", (*doctorRun).checkRoles},
	{"listen", (*doctorRun).checkListen},
	{"broker", (*doctorRun).checkBroker},
	{"inbox_retention", (*doctorRun).checkInboxRetention},
}

// doctorRun is one call of Doctor.
type doctorRun struct {
	*Admin
	brokers []broker.Checker
	found   []Finding
	damaged bool // the tables do not match the statements, which fail
	over    bool // the remaining checks cannot run

	role, database string // of this connection

	brokerDown  bool     // reported by a forwarder
	commitsWait bool     // for a synchronous standby
	obstacles   []string // triggers, rules and policies that may refuse rows or hide them from forwarders

	counted bool     // members is complete
	members []member // forwarders that have a row
	stats   *Stats
}

// run runs a check. On damaged tables a check may read whole tables, so its time is limited: the damage is already a
// finding.
func (e *doctorRun) run(ctx context.Context, check func(*doctorRun, context.Context) error) error {
	if e.damaged {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, damagedTimeout)
		defer cancel()
	}
	return check(e, ctx)
}

// damagedTimeout limits a check of tables that lack an index or a column.
const damagedTimeout = time.Second

func (e *doctorRun) find(check string, s Severity, evidence, cure string) {
	e.findOf(Outbox, "", check, s, evidence, cure)
}

// findOf adds a finding about messages of a table, or about a topic, a consumer or a forwarder.
func (e *doctorRun) findOf(in Table, subject, check string, s Severity, evidence, cure string) {
	k := kinds[check]
	e.found = append(e.found, Finding{
		Check: check, Severity: s, Title: k.title, Evidence: text.Redact(evidence), Cure: cure, In: in,
		Subject: subject, Alerts: k.alerts,
	})
}

// rows runs a statement whose rows have these columns, and calls fn after each.
func (e *doctorRun) rows(ctx context.Context, columns []any, fn func(), statement string, args ...any) error {
	return e.collect(ctx, func(rows drive.Rows) error {
		if err := rows.Scan(columns...); err != nil {
			return err
		}
		fn()
		return nil
	}, statement, args...)
}

// byAge is the severity of a condition that should end soon.
func byAge(age time.Duration) Severity {
	switch {
	case age >= 10*time.Minute:
		return Critical
	case age >= time.Minute:
		return Warning
	}
	return Info
}

// brief is how long a transaction of another session may last without being reported.
const brief = 5 * time.Second

// span formats a duration for people.
func span(d time.Duration) string { return words.Age(d) }

// count formats a number of things, such as "2 partitions".
func count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

// messages formats a number of messages and a verb: one for a single message, more for several.
func messages(c Count, of, one, more string) string {
	if c.N == 1 && !c.More {
		return fmt.Sprintf("1 message %s %s", of, one)
	}
	return fmt.Sprintf("%s messages %s %s", c, of, more)
}

// shell writes text as one argument of a command.
func shell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// String formats the count, "10000 or more" if there may be more.
func (c Count) String() string {
	if c.More {
		return fmt.Sprintf("%d or more", c.N)
	}
	return fmt.Sprint(c.N)
}
