package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

type relation struct {
	kind, persistence, text, options string
	rowSecurity                      bool
	columns                          map[string]liveColumn
	indexes                          []liveIndex
}

type liveColumn struct {
	kind                         string
	notNull, generated, identity bool
	expression                   string
}

type liveIndex struct {
	name                       string
	unique, valid              bool
	method, columns, predicate string
	built                      bool // a session builds an index on the table
}

type sequence struct {
	increment, cache int64
	cycle            bool
	kind             string
}

func (c *inspection) server(ctx context.Context) error {
	if err := genuine(ctx, c.q); err != nil {
		if !errors.Is(err, errOtherProduct) {
			return err
		}
		c.problem("server", "use PostgreSQL 13 or newer", "%s", err)
		c.useless = true
		return nil
	}
	return drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var version int64
		var standby bool
		var settings string
		if err := rows.Scan(&version, &standby, &settings); err != nil {
			return err
		}
		c.odd = oddSettings(strings.Split(settings, "|"))
		if version < 130000 {
			c.problem("server", "use PostgreSQL 13 or newer", "is PostgreSQL %d.%d", version/10000, version%10000)
			c.useless = true
		}
		if c.standby = standby; standby {
			c.problem("server", "connect to the primary (target_session_attrs=read-write)", "is a standby, which is read-only")
		}
		return nil
	}, sqltext.CheckServer, judgedNames())
}

// Cause: the server is another product that speaks PostgreSQL's protocol.
// Cure: use PostgreSQL.
var errOtherProduct = errors.New("is not PostgreSQL, though it speaks its protocol: " +
	"pg_current_snapshot does not list the " +
	"transactions in progress there, on which it rests that no message is lost or overtaken")

// genuine returns errOtherProduct if the server is one that only speaks the protocol.
func genuine(ctx context.Context, q drive.Querier) error {
	var version string
	if err := drive.Collect(ctx, q, func(rows drive.Rows) error {
		return rows.Scan(&version)
	}, sqltext.CheckProduct); err != nil {
		return err
	}
	for mark, product := range map[string]string{
		"CockroachDB": "CockroachDB", "-YB-": "YugabyteDB", "Redshift": "Amazon Redshift", "Greenplum": "Greenplum",
	} {
		if strings.Contains(version, mark) {
			return fmt.Errorf("(%s) %w", product, errOtherProduct)
		}
	}
	return nil
}

func (c *inspection) whoAsks(ctx context.Context) error {
	return drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		usable := false
		if err := rows.Scan(&c.role, &usable, new(string)); err != nil {
			return err
		}
		if !usable {
			name := sqltext.Quote(c.names.Schema)
			c.problem("schema "+name, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", name, sqltext.Quote(c.role)),
				"denies USAGE to role %s", sqltext.Quote(c.role))
			c.useless = true
		}
		return nil
	}, sqltext.CheckRole, c.names.Schema)
}

func (c *inspection) read(ctx context.Context) error {
	c.relations = map[string]relation{}
	c.sequences = map[string]sequence{}
	tables := make([]string, len(wanted))
	var sequences []string
	for i, w := range wanted {
		if tables[i] = c.names.Render(w.name); w.seq != "" {
			sequences = append(sequences, c.names.Render(w.seq))
		}
	}
	if err := c.readRelations(ctx, slices.Concat(sequences, tables)); err != nil {
		return fmt.Errorf("read relations: %w", err)
	}
	if c.relations[c.names.OutboxName()].kind == "p" {
		set, err := leaves.Read(ctx, c.q, c.names)
		if err != nil {
			return fmt.Errorf("read partitions: %w", err)
		}
		if c.partitions = set.Leaves; set.Default != nil {
			c.partitions = append(c.partitions, *set.Default)
		}
	}
	if err := c.readColumns(ctx, tables); err != nil {
		return fmt.Errorf("read columns: %w", err)
	}
	if err := c.readIndexes(ctx, tables); err != nil {
		return fmt.Errorf("read indexes: %w", err)
	}
	if err := c.readSequences(ctx, sequences); err != nil {
		return fmt.Errorf("read sequences: %w", err)
	}
	return nil
}

func (c *inspection) readRelations(ctx context.Context, names []string) error {
	return drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var name string
		var options *string
		r := relation{columns: map[string]liveColumn{}}
		if err := rows.Scan(&name, &r.kind, &r.persistence, &r.text, &options, &r.rowSecurity); err != nil {
			return err
		}
		if options != nil {
			r.options = *options
		}
		c.relations[name] = r
		return nil
	}, sqltext.CheckRelations, names)
}

func (c *inspection) readColumns(ctx context.Context, tables []string) error {
	return drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var table, name string
		var l liveColumn
		err := rows.Scan(&table, &name, &l.kind, &l.notNull, &l.generated, &l.identity, &l.expression)
		if r, ok := c.relations[table]; ok {
			r.columns[name] = l
		}
		return err
	}, sqltext.CheckColumns, tables)
}

func (c *inspection) readIndexes(ctx context.Context, tables []string) error {
	return drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var table string
		var l liveIndex
		err := rows.Scan(&table, &l.name, &l.unique, &l.valid, &l.method, &l.columns, &l.predicate, &l.built)
		if r, ok := c.relations[table]; ok {
			r.indexes = append(r.indexes, l)
			c.relations[table] = r
		}
		return err
	}, sqltext.CheckIndexes, tables)
}

func (c *inspection) readSequences(ctx context.Context, names []string) error {
	return drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var name string
		var seq sequence
		err := rows.Scan(&name, &seq.increment, &seq.cache, &seq.cycle, &seq.kind)
		c.sequences[name] = seq
		return err
	}, sqltext.CheckSequences, names)
}

func (r relation) isTable() bool { return r.kind == "r" || r.kind == "p" }

func (r relation) hasIndex(want wantedIndex, unique bool) bool {
	for _, l := range r.indexes {
		if l.valid && (l.unique || !unique) && l.method == want.method && l.columns == want.columns &&
			normalized(l.predicate) == normalized(want.predicate) {
			return true
		}
	}
	return false
}
