package schema

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/partitions"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// expected has the facts of a database created by Migrate, with placeholders for names. TestCatalog writes it.
//
//go:embed catalog.txt
var expected string

// fact is one property of a relation in the catalogs: see sqltext.CheckCatalog.
type fact struct {
	relation, kind, name string
	typ, state, text     string
}

func expectedFacts() (list []fact) {
	for line := range strings.Lines(expected) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " | ", 6)
		list = append(list, fact{f[0], f[1], f[2], f[3], f[4], f[5]})
	}
	return list
}

// isRelation reports whether the fact is the existence of a table or a sequence.
func (f fact) isRelation() bool { return f.kind == "table" || f.kind == "sequence" }

// readCatalog reads the facts of this database.
func (c *inspection) readCatalog(ctx context.Context) error {
	var names []string
	for _, f := range expectedFacts() {
		if f.isRelation() {
			names = append(names, c.names.Render(f.relation))
		}
	}
	c.facts = map[string][]fact{}
	err := drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var f fact
		err := rows.Scan(&f.relation, &f.kind, &f.name, &f.typ, &f.state, &f.text)
		c.facts[f.relation] = append(c.facts[f.relation], f)
		return err
	}, sqltext.CheckCatalog, names)
	if err != nil {
		return fmt.Errorf("read catalogs: %w", err)
	}
	set, err := partitions.Read(ctx, c.q, c.names)
	if err != nil {
		return fmt.Errorf("read partitions: %w", err)
	}
	if c.partitions = set.Partitions; set.Default != nil {
		c.partitions = append(c.partitions, *set.Default)
	}
	return nil
}

// fact returns the facts of a relation, or of its column or index; name is empty for the relation itself.
func (c *inspection) fact(relation, kind, name string) (fact, bool) {
	for _, f := range c.facts[c.names.Render(relation)] {
		if f.kind == kind && (name == "" || f.name == name) {
			return f, true
		}
	}
	return fact{}, false
}

// compare reports differences from the expected facts.
func (c *inspection) compare() {
	for _, want := range expectedFacts() {
		c.notForOutbox = !ofForwarder(want.relation)
		if want.isRelation() {
			c.relation(want)
			continue
		}
		if table, _ := c.fact(want.relation, "table", ""); table.typ != "table" {
			continue // reported before
		}
		if want.kind == "column" {
			c.column(want)
		} else {
			c.index(want)
		}
	}
	c.unknownColumns()
	c.swallowed()
}

// swallowed finds triggers and rules that may swallow inserts.
func (c *inspection) swallowed() {
	for _, t := range tables {
		c.notForOutbox = !ofForwarder(t.name)
		for _, f := range c.facts[c.names.Render(t.name)] {
			switch f.kind {
			case "insert trigger":
				c.warning("trigger "+f.name+" of table "+f.typ, "make sure that it never returns NULL, or DROP TRIGGER "+f.name+
					" ON "+f.typ, "runs before each insert: if it returns NULL, nothing is stored")
			case "insert rule":
				c.problem("rule "+f.name+" of table "+f.typ, "DROP RULE "+f.name+" ON "+f.typ,
					"replaces inserts: nothing is stored")
			}
		}
	}
}

func (c *inspection) relation(want fact) {
	name := c.names.Render(want.relation)
	object, alter := want.kind+" "+name, "ALTER "+strings.ToUpper(want.kind)+" "+name
	got, ok := c.fact(want.relation, want.kind, "")
	switch {
	case !ok:
		c.problem(object, c.create(want), "is missing")
		return
	case want.kind == "table" && got.typ != want.typ:
		c.problem(object, "choose other outbox.Tables or drop it", "is a %s, not a table", got.typ)
		return
	case got.state == "temporary":
		c.problem(object, "drop it", "is temporary and hides the real one")
	case got.state == want.state:
	case want.state == "unlogged":
		c.problem(object, alter+" SET UNLOGGED",
			"is logged: a crash of the server would go unnoticed, though ids may stand for other messages after it")
	default:
		table, _ := c.fact(strings.Replace(want.relation, "_id_seq", "", 1), "table", "")
		if want.kind == "table" || table.state == "logged" { // otherwise one statement cures both
			c.problem(object, alter+" SET LOGGED", unlogged)
		}
	}
	if want.kind == "sequence" {
		if is, must := got.typ+" "+got.text, want.typ+" "+want.text; is != must {
			c.problem(object, alter+" AS "+must, "is %s, not %s: ids must ascend one by one, or the order breaks",
				is, must)
		}
		return
	}
	if _, ok := c.fact(want.relation, "row security", ""); ok {
		c.warning(object, "give the role of the forwarder BYPASSRLS, or a policy that shows it all rows",
			"has row security, which may hide messages")
	}
	switch {
	case want.relation == "{outbox}" && len(c.partitions) > 0:
		for _, p := range c.partitions {
			if p.Logging != "" {
				c.problem("table "+p.SQL, p.Logging, unlogged)
			}
			if !p.Split { // otherwise it does not accept these settings
				c.autovacuum("table "+p.SQL, p.SQL, p.Options)
			}
		}
	case strings.Contains(want.text, "autovacuum"):
		c.autovacuum(object, name, strings.Split(got.text, ","))
	}
}

const unlogged = "is unlogged: a crash of the server would empty it"

func (c *inspection) column(want fact) {
	table := c.names.Render(want.relation)
	object, alter := fmt.Sprintf("column %s.%s", table, want.name), "ALTER TABLE "+table+" ALTER COLUMN "+want.name
	got, ok := c.fact(want.relation, "column", want.name)
	if !ok {
		c.problem(object, c.addColumn(want, false), "is missing")
		return
	}
	if got.typ != want.typ {
		c.problem(object, alter+" TYPE "+want.typ, "has type %s, not %s", got.typ, want.typ)
	}
	switch {
	case got.state == want.state:
	case want.state == "NULL":
		c.problem(object, alter+" DROP NOT NULL", "refuses NULL")
	default:
		c.problem(object, alter+" SET NOT NULL", "may be NULL")
	}
	if normalized(got.text) == normalized(c.printed(want.text)) {
		return
	}
	cure, why := c.addColumn(want, true), ""
	if !strings.HasPrefix(want.text, "GENERATED ") {
		cure = "ALTER TABLE " + table + strings.Join(c.expression(want, got), ",")
	}
	if strings.Contains(want.text, "pg_current_xact_id") {
		why = ": the transaction id must be assigned before the row id, or messages are handled out of order, or late"
	}
	if want.text != "" || !strings.HasPrefix(got.text, "DEFAULT ") { // their default, for columns that we always write
		c.problem(object, cure, "has %q, not %q%s", got.text, c.printed(want.text), why)
	}
}

// expression returns the clauses of ALTER TABLE that give a column the default that it should have.
func (c *inspection) expression(want, got fact) (clauses []string) {
	alter := " ALTER COLUMN " + want.name
	switch {
	case got.text == "IDENTITY":
		clauses = append(clauses, alter+" DROP IDENTITY")
	case strings.HasPrefix(got.text, "GENERATED "):
		clauses = append(clauses, alter+" DROP EXPRESSION")
	}
	switch want.text {
	case "":
	case "IDENTITY":
		clauses = append(clauses, alter+" ADD GENERATED ALWAYS AS IDENTITY")
	default:
		clauses = append(clauses, alter+" SET "+c.names.Render(want.text))
	}
	return clauses
}

// printed returns an expression with the names of sequences as this session prints them.
func (c *inspection) printed(text string) string {
	for _, seq := range []string{"{outbox_id_seq}", "{queue_id_seq}"} {
		f, _ := c.fact(seq, "sequence", "")
		text = strings.ReplaceAll(text, seq, f.name)
	}
	return text
}

// unknownColumns finds the user's columns that prevent us from writing.
func (c *inspection) unknownColumns() {
	known := map[[2]string]bool{}
	for _, f := range expectedFacts() {
		known[[2]string{f.relation, f.name}] = true
	}
	for _, t := range tables {
		c.notForOutbox = !ofForwarder(t.name)
		table := c.names.Render(t.name)
		for _, f := range c.facts[table] {
			if f.kind == "column" && f.state == "NOT NULL" && f.text == "" && !known[[2]string{t.name, f.name}] {
				c.problem(fmt.Sprintf("column %s.%s", table, sqltext.Quote(f.name)), "make it nullable or give it a default",
					"must be given, but this library does not know it")
			}
		}
	}
}

// same reports whether an index is equivalent to another, whatever its name.
func (f fact) same(want fact) bool {
	return f.kind == "index" && f.typ == want.typ && (f.state == want.state || f.state == "unique" && want.state == "") &&
		normalized(f.text) == normalized(want.text)
}

func (c *inspection) index(want fact) {
	table, name := c.names.Render(want.relation), c.names.Render(want.name)
	if slices.ContainsFunc(c.facts[table], func(f fact) bool { return f.same(want) }) {
		return
	}
	if want.state == "unique" {
		key := strings.TrimPrefix(want.typ, "btree ")
		c.problem("table "+table, "ALTER TABLE "+table+" ADD PRIMARY KEY "+key, "has no valid, immediate primary key %s", key)
		return
	}
	found := "is missing"
	cure := strings.Replace(c.statement(" INDEX "+name+" "), "INDEX", "INDEX CONCURRENTLY", 1)
	for _, f := range c.facts[table] {
		if f.kind != "index" || sqltext.Quote(f.name) != name {
			continue
		}
		cure = "drop it, then create it again, each on its own and outside a transaction: DROP INDEX CONCURRENTLY " +
			c.names.InSchema(want.name) + "; " + cure
		switch f.state {
		case "building": // dropping it would end the build, after a wait that stops all writers
			found, cure = "is being built, or an earlier build of it failed",
				"wait for the running build (pg_stat_progress_create_index), then check again"
		case "invalid":
			found = "is invalid, as a failed CREATE INDEX CONCURRENTLY leaves it"
		default:
			found = fmt.Sprintf("is %s WHERE %s", f.typ, f.text)
		}
	}
	if want.relation == "{outbox}" && len(c.partitions) > 0 { // its indexes cannot be built or dropped concurrently
		cure = strings.ReplaceAll(cure, " CONCURRENTLY", "")
	}
	if c.behind {
		cure = runMigrate
	}
	c.problem("index "+name, cure, "%s", found)
}

func (c *inspection) autovacuum(object, name string, options []string) {
	has := func(option string) bool {
		return slices.ContainsFunc(options, func(o string) bool { return strings.HasPrefix(o, option) })
	}
	switch {
	case has("autovacuum_enabled=") && !has("autovacuum_enabled=true") && !has("autovacuum_enabled=on"):
		c.warning(object, "ALTER TABLE "+name+" RESET (autovacuum_enabled)",
			"has autovacuum switched off: reads slow down as dead rows pile up")
	case !has("autovacuum_vacuum_scale_factor="):
		c.warning(object, "ALTER TABLE "+name+
			" SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000)",
			"has no autovacuum settings of its own: the defaults vacuum a queue too late")
	}
}

var sameExpression = strings.NewReplacer(
	" ", "", "\n", "", "(", "", ")", "", "pg_catalog.", "",
	"::text", "", "::bigint", "", "::smallint", "", "::jsonb", "", "::regclass", "",
)

// normalized removes from an expression the parts that releases of Postgres print differently: parentheses, casts and
// qualification. Our expressions have one operator or only ANDs, so no two of them become equal.
func normalized(expression string) string {
	return strings.ToLower(sameExpression.Replace(expression))
}
