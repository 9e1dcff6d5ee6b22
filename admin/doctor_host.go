package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	wrongClock   = 5 * time.Second // how far clocks may differ
	shortTimeout = 10 * time.Second
)

// checkServer looks at what the server as a whole says of itself.
func (e *exam) checkServer(ctx context.Context) error {
	var failing, lists bool
	var since, written float64
	var file string
	err := e.rows(ctx, []any{&e.autovacuumOff, &failing, &since, &file, &lists, &written}, func() {}, sqltext.DoctorServer)
	if err != nil {
		return err
	}
	if failing {
		e.find("disk", max(Warning, byAge(seconds(since))),
			fmt.Sprintf("the server's log is not archived: archive_command fails, last for %s, and has not worked for %s; "+
				"the log fills the disk meanwhile", file, span(seconds(since))),
			"fix archive_command or its target: the server's log says why it fails")
	}
	if ahead := -seconds(written); ahead > wrongClock {
		e.find("clock", Warning, fmt.Sprintf("the newest message was written %s in the future: the clock of the server was "+
			"set back, or is behind that of another server before a failover", span(ahead)),
			"synchronise the clocks of the database servers (chrony, NTP): ages and delays are wrong until then")
	}
	begun := time.Now()
	now, err := e.now(ctx)
	if err != nil {
		return err
	}
	if early, late := begun.Sub(now), time.Until(now); max(early, late) > wrongClock {
		e.find("clock", Warning,
			fmt.Sprintf("the clock of this machine and that of the database differ by %s", span(max(early, late))),
			"synchronise both (chrony, NTP): what this machine delays until a time is published at another one")
	}
	if lists {
		return e.checkWAL(ctx)
	}
	return nil
}

// checkWAL looks how much of the disk the server's log takes. SQL does not tell how much is free.
func (e *exam) checkWAL(ctx context.Context) error {
	var size, limit int64
	return e.rows(ctx, []any{&size, &limit}, func() {
		if size > 4*limit && size > bigWAL {
			e.find("disk", Warning,
				fmt.Sprintf("the server's log takes %d MiB, and %d MiB are meant (max_wal_size, wal_keep_size)", size>>20,
					limit>>20),
				"find out what keeps it: a replication slot, an archive_command that fails, or checkpoints that take too long; "+
					"look at the free space of the disk")
		}
	}, sqltext.DoctorWAL)
}

// checkRoles looks at the limits of the roles of forwarders, and of who asks.
func (e *exam) checkRoles(ctx context.Context) error {
	roles := []string{e.role}
	for _, m := range e.members {
		if m.says.Role != "" && !slices.Contains(roles, m.says.Role) {
			roles = append(roles, m.says.Role)
		}
	}
	var role string
	var limit, used int64
	var timeout float64
	var here bool
	return e.rows(ctx, []any{&role, &limit, &used, &timeout, &here}, func() {
		if limit >= 0 && used*10 >= limit*9 {
			s := Warning
			if used >= limit {
				s = Critical
			}
			e.find("connections", s, fmt.Sprintf("role %s has %d of at most %d connections: a forwarder that loses a "+
				"connection may not get another, and lose its lease", sqltext.Quote(role), used, limit),
				fmt.Sprintf("make pools smaller, use a pooler, or raise the limit of the role: ALTER ROLE %s CONNECTION LIMIT %d",
					sqltext.Quote(role), 2*max(limit, used, 5)))
		}
		if t := seconds(timeout); t > 0 && t < shortTimeout && role != e.role { // of its own, the check of the schema says so
			in := ""
			if here {
				in = " IN DATABASE " + sqltext.Quote(e.database)
			}
			e.find("statement_timeout", Warning,
				fmt.Sprintf("role %s of a forwarder has statement_timeout %s: the server cancels reads of a large backlog and "+
					"the deleting of what is old", sqltext.Quote(role), t),
				fmt.Sprintf("reset it, and restart what uses the role: ALTER ROLE %s%s RESET statement_timeout",
					sqltext.Quote(role), in))
		}
	}, sqltext.DoctorRoles, roles)
}
