package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// session is another session, from pg_stat_activity.
type session struct {
	pid                      int64
	user, application, state string
	seconds                  float64 // age of its transaction
	address                  string  // "" = Unix socket, or not visible
}

func (s *session) columns() []any {
	return []any{&s.pid, &s.user, &s.application, &s.state, &s.seconds, &s.address}
}

func (s session) String() string {
	return fmt.Sprintf("%s, %s, in a transaction for %s", s.who(), s.state, span(seconds(s.seconds)))
}

func (s session) who() string {
	who := fmt.Sprintf("session %d of role %s", s.pid, sqltext.Quote(s.user))
	if s.application != "" {
		who += fmt.Sprintf(" (%q)", s.application)
	}
	return who
}

func (s session) whoAndWhere() string {
	if s.address == "" {
		return s.who()
	}
	return s.who() + " from " + s.address
}

func (s session) end() string { return fmt.Sprintf("SELECT pg_terminate_backend(%d)", s.pid) }

// checkSessions reports transactions that hold locks on our tables.
func (e *doctorRun) checkSessions(ctx context.Context) error {
	var s session
	var table, modes string
	var whole, granted bool
	return e.rows(ctx, append(s.columns(), &table, &modes, &whole, &granted), func() {
		age := seconds(s.seconds)
		idle := strings.HasPrefix(s.state, "idle in transaction")
		switch {
		case whole && granted:
			e.find("table_lock", max(Warning, byAge(age)),
				fmt.Sprintf("%s, has locked table %s (%s): nothing can write to it", s, table, modes),
				"wait if it is a planned migration, or end it: "+s.end())
		case whole:
			e.find("table_lock", max(Warning, byAge(age)),
				fmt.Sprintf("%s, waits for a lock on table %s (%s), and later sessions wait behind it", s, table, modes),
				"end it, or the session that it waits for: "+s.end())
		case idle:
			e.find("idle_transaction", byAge(age),
				fmt.Sprintf("%s, has locks on table %s (%s): rows that it locked cannot be settled, rows that it wrote are "+
					"invisible, and vacuum waits", s, table, modes),
				"fix the program so that it ends its transactions, or set idle_in_transaction_session_timeout; end this one: "+
					s.end())
		default:
			e.find("long_transaction", byAge(age),
				fmt.Sprintf("%s, has locks on table %s (%s): its messages are published after it commits", s, table, modes),
				"use smaller transactions; or end this one, which rolls it back: "+s.end())
		}
	}, sqltext.DoctorLocks, e.tables("{outbox}", "{inbox}", "{queue}", "{idempotency}", "{lanes}", "{forwarders}",
		"{outbox_topics}", "{outbox_life}"), brief.Seconds())
}

// checkPrepared reports prepared transactions that were never ended.
func (e *doctorRun) checkPrepared(ctx context.Context) error {
	var gid, owner string
	var age float64
	return e.rows(ctx, []any{&gid, &owner, &age}, func() {
		e.find("prepared_transactions", byAge(seconds(age)),
			fmt.Sprintf("transaction %q of role %s was prepared %s ago and never ended: it keeps its locks, rows that it "+
				"wrote are invisible, and vacuum waits", gid, sqltext.Quote(owner), span(seconds(age))),
			endPrepared(gid))
	}, sqltext.DoctorPrepared, brief.Seconds())
}

func endPrepared(gid string) string {
	return "let its transaction manager end it; or, if that did not decide to commit it, roll it back: " +
		"ROLLBACK PREPARED " + literal(gid)
}

// tables returns table names as SQL.
func (e *doctorRun) tables(placeholders ...string) []string {
	names := make([]string, len(placeholders))
	for i, p := range placeholders {
		names[i] = e.db.Render(p)
	}
	return names
}
