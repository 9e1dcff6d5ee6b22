package admin

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// checkCommits reports commits that wait for a synchronous standby. Ending such a session commits without the standby,
// so the checks of sessions and forwarders do not suggest it.
func (e *doctorRun) checkCommits(ctx context.Context) error {
	var n int64
	var longest float64
	var standbys string
	return e.rows(ctx, []any{&n, &longest, &standbys}, func() {
		if n == 0 {
			return
		}
		e.commitsWait = true
		e.find("commit_waits", max(Warning, byAge(seconds(longest))),
			fmt.Sprintf("%s for a synchronous standby to confirm (SyncRep), the longest for %s; "+
				"synchronous_standby_names is %q: "+
				"nothing is written, published or handled meanwhile", commits(n), span(seconds(longest)), standbys),
			"start that standby, or its connection to this server. If it does not come back, take it out of "+
				"synchronous_standby_names (ALTER SYSTEM, then SELECT pg_reload_conf()), which gives up its copy. Do not end or "+
				"cancel the sessions: that commits on this server alone")
	}, sqltext.DoctorSyncRep, brief.Seconds())
}

func commits(n int64) string {
	if n == 1 {
		return "1 commit waits"
	}
	return fmt.Sprintf("%d commits wait", n)
}

// obstaclesOn returns the obstacles of one table.
func (e *doctorRun) obstaclesOn(placeholder string) (list []string) {
	table := e.tables(placeholder)[0]
	for _, o := range e.obstacles {
		if strings.HasSuffix(o, " on "+table) {
			list = append(list, o)
		}
	}
	return list
}

// checkObstacles reports objects that users added to the tables, and ids that run out.
func (e *doctorRun) checkObstacles(ctx context.Context) error {
	var what, table, name string
	err := e.rows(ctx, []any{&what, &table, &name}, func() {
		add := func(kind string) { e.obstacles = append(e.obstacles, strings.TrimSpace(kind+" "+name)+" on "+table) }
		switch what {
		case "trigger":
			add("trigger") // the check of the tables reports triggers on INSERT
		case "rule":
			add("rule")
		case "check":
			add("constraint")
		case "unique", "unique constraint":
			drop := "DROP INDEX " + name
			if what == "unique constraint" { // Postgres refuses to drop its index
				drop = fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s", table, name)
			}
			e.find("unique_index", Warning, fmt.Sprintf("unique index %s is on table %s: a message that violates it fails the "+
				"transaction that writes it, and a message that an operator sends again may fail too", name, table),
				"make it an index that is not unique, and enforce such a rule in a table of your own: "+drop)
		case "child":
			e.find("inherits", Warning, fmt.Sprintf("table %s inherits from table %s: reads of that table return its rows "+
				"too, and nothing keeps "+
				"their ids unique", name, table), fmt.Sprintf("move its rows, then: ALTER TABLE %s NO INHERIT %s", name, table))
		case "detached":
			e.find("detached", Critical, fmt.Sprintf("table %s has the name of a partition of table %s, but is detached: "+
				"messages "+
				"in it are not published", name, table),
				"attach it again (ALTER TABLE ... ATTACH PARTITION), or drop it if nothing in it is pending: SELECT count(*) FROM "+
					name+" WHERE published_at IS NULL")
		case "nodefault":
			e.find("detached", Critical, fmt.Sprintf("table %s has no default partition: a message whose id has no partition "+
				"fails the transaction that writes it", table),
				fmt.Sprintf("attach the detached one, or create one: CREATE TABLE %s_default PARTITION OF %s DEFAULT",
					strings.Trim(table, `"`), table))
		case "security":
			add("row security")
		case "sequence":
			left, s := name, Warning
			if n, err := strconv.ParseInt(left, 10, 64); err == nil && n < 1000 {
				s = Critical
			}
			e.find("sequence", s, fmt.Sprintf("sequence %s has %s numbers left; after that nothing can be written", table, left),
				"raise its maximum: ALTER SEQUENCE "+table+" NO MAXVALUE")
		}
	}, sqltext.DoctorObstacles, e.tables("{outbox}", "{inbox}", "{queue}"), e.db.Tables().WithDefaults().Outbox)
	if err != nil {
		return err
	}
	return e.elsewhere(ctx)
}

// elsewhere reports outboxes of the same name in other schemas, which writers with a wrong search_path fill.
func (e *doctorRun) elsewhere(ctx context.Context) error {
	names := e.db.Tables().WithDefaults()
	var others []string
	var schema string
	if err := e.rows(ctx, []any{&schema}, func() { others = append(others, schema) }, sqltext.CheckElsewhere,
		names.Outbox); err != nil || len(others) < 2 {
		return err
	}
	var here string
	if err := e.rows(ctx, []any{&here}, func() {}, sqltext.DoctorSchema); err != nil {
		return err
	}
	for _, other := range others {
		if other == here {
			continue
		}
		there := names
		there.Schema = other
		var lives, waits bool
		err := e.collect(ctx, func(rows drive.Rows) error { return rows.Scan(&lives, &waits) },
			there.Render(sqltext.CheckAlive))
		switch state := text.SQLState(err); {
		case err == nil && waits && !lives:
			e.find("elsewhere", Warning, fmt.Sprintf("the outbox of schema %s has had messages for more than a minute, and no "+
				"forwarder runs on it; this one is in schema %s", sqltext.Quote(other), sqltext.Quote(here)),
				"find out which writers have another search_path, or set DBConfig.Tables.Schema of writers and forwarders; or run "+
					"a forwarder on it")
		case err != nil && state == "":
			return err // the others are not ours: a failure to read them is not a finding
		}
	}
	return nil
}
