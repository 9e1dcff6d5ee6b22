package schema

import (
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"
)

// ErrBadName is returned for a table or schema name that is refused before any SQL is built from it.
var ErrBadName = errors.New("bad table name")

// Names are the names of the tables. The zero value means the defaults in the search path of the
// connection. A name may hold ASCII letters, digits, _, $ and -, may not start with a digit or -,
// and has at most 40 bytes; it is always quoted, so it is case-sensitive.
type Names struct {
	Schema     string // schema of all tables; default: none, that is the connection's search_path
	Outbox     string // default "outbox"
	Lanes      string // default: Outbox + "_lanes"
	Forwarders string // default: Outbox + "_forwarders"
	Migrations string // default: Outbox + "_migrations"
	Inbox      string // default "inbox"
}

var nameShape = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_$-]{0,39}$`)

// WithDefaults returns the names with every empty one filled in.
func (n Names) WithDefaults() Names {
	fill := func(s *string, def string) {
		if *s == "" {
			*s = def
		}
	}
	fill(&n.Outbox, "outbox")
	fill(&n.Lanes, n.Outbox+"_lanes")
	fill(&n.Forwarders, n.Outbox+"_forwarders")
	fill(&n.Migrations, n.Outbox+"_migrations")
	fill(&n.Inbox, "inbox")
	return n
}

// Validate reports the first name that is refused, wrapped around ErrBadName, or two tables of one name.
func (n Names) Validate() error {
	n = n.WithDefaults()
	seen := map[string]string{}
	for _, f := range []struct{ field, name string }{
		{"Outbox", n.Outbox}, {"Lanes", n.Lanes}, {"Forwarders", n.Forwarders},
		{"Migrations", n.Migrations}, {"Inbox", n.Inbox},
	} {
		if !nameShape.MatchString(f.name) {
			return fmt.Errorf("%w: %s is %q; use letters, digits, _, $ and -, at most 40", ErrBadName, f.field, f.name)
		}
		if other, ok := seen[f.name]; ok {
			return fmt.Errorf("%w: %s and %s are both %q", ErrBadName, other, f.field, f.name)
		}
		seen[f.name] = f.field
	}
	if n.Schema != "" && !nameShape.MatchString(n.Schema) {
		return fmt.Errorf("%w: Schema is %q; use letters, digits, _, $ and -, at most 40", ErrBadName, n.Schema)
	}
	return nil
}

// Render replaces the placeholders of a statement of this package by quoted identifiers. It must be
// called on names that Validate accepts.
func (n Names) Render(statement string) string {
	n = n.WithDefaults()
	return strings.NewReplacer(
		"{outbox}", n.qualified(n.Outbox),
		"{outbox_text}", "'"+n.qualified(n.Outbox)+"'",
		"{outbox_id_seq}", n.qualified(n.Outbox+"_id_seq"),
		"{outbox_id_seq_text}", "'"+n.qualified(n.Outbox+"_id_seq")+"'",
		"{outbox_ready}", quote(n.Outbox+"_ready"),
		"{outbox_waiting}", quote(n.Outbox+"_waiting"),
		"{outbox_dead}", quote(n.Outbox+"_dead"),
		"{lanes}", n.qualified(n.Lanes),
		"{forwarders}", n.qualified(n.Forwarders),
		"{migrations}", n.qualified(n.Migrations),
		"{inbox}", n.qualified(n.Inbox),
		"{inbox_processed}", quote(n.Inbox+"_processed"),
	).Replace(statement)
}

// OutboxName returns the qualified, quoted name of the outbox table, for messages and as the
// identity of a table set within one database.
func (n Names) OutboxName() string {
	n = n.WithDefaults()
	return n.qualified(n.Outbox)
}

// Channel returns the name of the channel on which commits of messages are notified.
func (n Names) Channel() string {
	h := fnv.New64a()
	h.Write([]byte(n.OutboxName()))
	return fmt.Sprintf("outbox_%016x", h.Sum64())
}

func (n Names) qualified(table string) string {
	if n.Schema == "" {
		return quote(table)
	}
	return quote(n.Schema) + "." + quote(table)
}

func quote(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}
