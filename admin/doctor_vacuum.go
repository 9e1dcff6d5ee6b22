package admin

import (
	"context"
	"fmt"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	manyDead = 20_000 // rows; this many trigger autovacuum
	manyXIDs = 10_000 // transactions since a snapshot
)

// holder is a session, slot or prepared transaction that keeps dead rows from being removed.
type holder struct {
	kind, name string // name of a slot or of a prepared transaction
	xids       int64  // since its snapshot
	session    session
}

func (h holder) String() string {
	since := fmt.Sprintf(", %d transactions ago", h.xids)
	switch h.kind {
	case "standby":
		who := "a standby, " + h.session.whoAndWhere()
		if h.name != "" {
			who += ", by replication slot " + sqltext.Quote(h.name)
		}
		return who + since
	case "slot":
		return fmt.Sprintf("replication slot %s, %d transactions behind", sqltext.Quote(h.name), h.xids)
	case "prepared":
		return fmt.Sprintf("prepared transaction %q", h.name) + since
	case "analyze":
		return fmt.Sprintf("an ANALYZE of autovacuum, process %d, for %s", h.session.pid, span(seconds(h.session.seconds))) +
			since
	}
	return h.session.String() + since
}

func (h holder) cure() string {
	switch h.kind {
	case "standby":
		// after its connection is ended it reconnects with the same snapshot, and a slot in use cannot be dropped
		return "on that standby, end the oldest transaction (pg_stat_activity, by xact_start), or set hot_standby_feedback " +
			"= off; ending its connection here does not help"
	case "slot":
		return "start its reader; or, if nothing reads it any more, drop it: SELECT pg_drop_replication_slot(" +
			literal(h.name) + ")"
	case "prepared":
		return endPrepared(h.name)
	case "analyze":
		return "wait for it to finish; if it takes hours, lower autovacuum_vacuum_cost_delay or raise " +
			"autovacuum_vacuum_cost_limit"
	}
	return "wait if it is a planned backup or report, or end it: " + h.session.end()
}

// checkVacuum reports dead rows that vacuum does not remove, and the sessions that keep them.
func (e *doctorRun) checkVacuum(ctx context.Context) error {
	var holders []holder
	var h holder
	err := e.rows(ctx, append([]any{&h.kind, &h.name, &h.xids}, h.session.columns()...), func() {
		holders = append(holders, h)
	},
		sqltext.DoctorHorizon, int64(manyXIDs))
	if err != nil {
		return err
	}
	var table string
	var dead int64
	var vacuumed float64
	var atIt bool
	return e.rows(ctx, []any{&table, &dead, &vacuumed, &atIt}, func() {
		switch {
		case dead < manyDead:
		case len(holders) > 0:
			e.find("vacuum", Warning, fmt.Sprintf("table %s has %d dead rows that vacuum cannot remove because of %s", table,
				dead, holders[0]), holders[0].cure())
		case dead > 50*manyDead && vacuumed > 600 && !atIt:
			e.find("vacuum", Warning,
				fmt.Sprintf("table %s has %d dead rows and has not been vacuumed for %s", table, dead, span(seconds(vacuumed))),
				"find out why autovacuum does not run (autovacuum, track_counts, autovacuum_max_workers, "+
					"autovacuum_vacuum_cost_delay), or run it: VACUUM (ANALYZE) "+table)
		}
	}, sqltext.DoctorTables, e.tables("{outbox}", "{inbox}", "{queue}", "{idempotency}", "{lanes}", "{forwarders}"))
}
