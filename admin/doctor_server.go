package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	manyDead = 20_000   // rows; so many wake autovacuum
	manyXIDs = 10_000   // transactions since somebody's snapshot
	bigTable = 10 << 30 // bytes
	bigWAL   = 1 << 30
)

// checkVacuum looks at dead rows, and at who keeps them.
func (e *exam) checkVacuum(ctx context.Context) error {
	var holders []struct{ who, cure string }
	var kind, name string
	var s session
	var xids int64
	err := e.rows(ctx, append([]any{&kind, &name, &xids}, s.columns()...), func() {
		h := struct{ who, cure string }{
			who:  fmt.Sprintf("%s, %d transactions ago", s, xids),
			cure: "end what keeps them: " + s.end(),
		}
		switch kind {
		case "slot":
			h.who, h.cure = fmt.Sprintf("replication slot %s, %d transactions behind", sqltext.Quote(name), xids), "drop it if nobody reads it any more: SELECT pg_drop_replication_slot("+literal(name)+")"
		case "prepared":
			h.who, h.cure = fmt.Sprintf("prepared transaction %q, %d transactions ago", name, xids), "end it: ROLLBACK PREPARED "+literal(name)
		}
		holders = append(holders, h)
	}, sqltext.DoctorHorizon, int64(manyXIDs))
	if err != nil {
		return err
	}
	var table string
	var dead, size int64
	var vacuumed float64
	return e.rows(ctx, []any{&table, &dead, &size, &vacuumed}, func() {
		switch {
		case dead < manyDead:
		case len(holders) > 0:
			e.find("vacuum", Warning, fmt.Sprintf("table %s has %d dead rows, which vacuum must keep for %s", table, dead, holders[0].who), holders[0].cure)
		case dead > 50*manyDead && vacuumed > 600:
			e.find("vacuum", Warning, fmt.Sprintf("table %s has %d dead rows and was not vacuumed for %s", table, dead, span(seconds(vacuumed))),
				"see why autovacuum does not come (autovacuum_max_workers, autovacuum_vacuum_cost_delay): VACUUM (ANALYZE) "+table)
		}
		if size > bigTable {
			e.find("size", Info, fmt.Sprintf("table %s takes %d GiB with its indexes", table, size>>30),
				"keep messages for a shorter time (forwarder.Config.Retention, InboxRetention), if that is not meant")
		}
	}, sqltext.DoctorTables, e.tables("{outbox}", "{inbox}", "{queue}", "{lanes}", "{forwarders}"))
}

// checkSlots looks at replication slots that keep the server's log.
func (e *exam) checkSlots(ctx context.Context) error {
	var name, kind, status string
	var active bool
	var behind int64
	return e.rows(ctx, []any{&name, &kind, &active, &status, &behind}, func() {
		s := Info
		if behind > bigWAL || status == "unreserved" || status == "lost" {
			s = Warning
		}
		if active && s == Info {
			return
		}
		e.find("replication_slots", s, fmt.Sprintf("%s replication slot %s is read by nobody (active: %t) or far behind, and keeps %d MiB of the server's log (%s)", kind, sqltext.Quote(name), active, behind>>20, status),
			"start its reader; or, if it has none any more: SELECT pg_drop_replication_slot("+literal(name)+")")
	}, sqltext.DoctorSlots)
}

// checkNotifyQueue looks at how full the queue of notifications is.
func (e *exam) checkNotifyQueue(ctx context.Context) error {
	var usage float64
	var s session
	return e.rows(ctx, append([]any{&usage}, s.columns()...), func() {
		if usage < 0.1 {
			return
		}
		severity := Warning
		if usage > 0.5 {
			severity = Critical
		}
		evidence := fmt.Sprintf("the server's queue of notifications is %.0f %% full; once it is full, NOTIFY fails", 100*usage)
		if s.pid == 0 {
			e.find("notify_queue", severity, evidence, "find the session that listens and never ends its transaction, and end it")
			return
		}
		e.find("notify_queue", severity, evidence+". The oldest transaction, which may be it: "+s.String(),
			"end the session that listens and stays in a transaction; the server's log says which, as one among those with the oldest transactions. If it is this one: "+s.end())
	}, sqltext.DoctorNotifyQueue)
}

// checkListen sends a notification and waits for it.
func (e *exam) checkListen(ctx context.Context) error {
	ctx, cancel := e.bound(ctx)
	defer cancel()
	err := e.db.Hear(ctx)
	switch {
	case errors.Is(err, drive.ErrNoListen):
		e.find("listen", Info, err.Error(),
			"to have forwarders woken at once, give them a pgx pool that reaches Postgres directly; or set forwarder.Config.DisableListen, and PollInterval to how long a message may wait")
		return nil
	case err != nil && ctx.Err() != nil:
		e.find("listen", Warning, "a notification did not arrive: "+err.Error(), "forwarders poll meanwhile; look at the server's log, and at what is between it and us")
		return nil
	}
	return err
}

// literal writes text as SQL.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
