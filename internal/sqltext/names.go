package sqltext

import (
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"
	"sync/atomic"
)

// ErrBadName is returned for a table or schema name that is refused before any SQL is built from it.
//
// Cause: it is long, or has characters that need escaping.
// Cure: use at most 40 ASCII letters, digits, _, $ and -; a letter or _ first.
var ErrBadName = errors.New("bad table name")

// Tables are the names of the tables. The zero value means the defaults in the search path of the connection. A name
// may hold ASCII letters, digits, _, $ and -, may not start with a digit or -, and has at most 40 bytes; it is always
// quoted, so it is case-sensitive. Names that are derived from it may be longer. Services that share a schema must each
// choose a different Outbox.
type Tables struct {
	Schema     string // default: none, so the search_path of the connection applies
	Outbox     string // default "outbox"
	Lanes      string // default: Outbox + "_lanes"
	Forwarders string // default: Outbox + "_forwarders"
	Migrations string // default: Outbox + "_migrations"
	Inbox      string // default: "inbox" with the default Outbox, else Outbox + "_inbox"
	Queue      string // default: "inbox_queue" with the default Outbox, else Outbox + "_queue"
	Audit      string // default: Outbox + "_audit"
	// Idempotency holds the HTTP responses of package idempotency; default: Outbox + "_idempotency".
	Idempotency string
}

// life identifies an incarnation of the server and of the sequence of ids: the start time of the server, a row in a
// table that a crash, a promotion and a restored backup empty, and the file of the sequence, which restarting the
// sequence replaces. It is NULL from a crash until CreateIncarnation runs.
const life = `(SELECT extract(epoch FROM pg_postmaster_start_time())::text || ' ' || l.token::text || ' ' ||
                                 pg_relation_filenode({outbox_id_seq_text}::regclass)::text FROM {outbox_life} l)`

var nameShape = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_$-]{0,39}$`)

// WithDefaults returns the names with the defaults of empty ones filled in.
func (n Tables) WithDefaults() Tables {
	fill := func(s *string, def string) {
		if *s == "" {
			*s = def
		}
	}
	fill(&n.Outbox, "outbox")
	fill(&n.Lanes, n.Outbox+"_lanes")
	fill(&n.Forwarders, n.Outbox+"_forwarders")
	fill(&n.Migrations, n.Outbox+"_migrations")
	fill(&n.Audit, n.Outbox+"_audit")
	fill(&n.Idempotency, n.Outbox+"_idempotency")
	if n.Outbox == "outbox" {
		fill(&n.Inbox, "inbox")
		fill(&n.Queue, "inbox_queue")
	}
	fill(&n.Inbox, n.Outbox+"_inbox")
	fill(&n.Queue, n.Outbox+"_queue")
	return n
}

// Validate returns an ErrBadName for the first name that is refused, or equals the name of another table, or of an
// index or sequence of these tables.
func (n Tables) Validate() error {
	n = n.WithDefaults()
	derived := Tables{Outbox: n.Outbox}.WithDefaults()
	tables := []struct{ field, name, derived string }{
		{"Outbox", n.Outbox, ""},
		{"Lanes", n.Lanes, derived.Lanes},
		{"Forwarders", n.Forwarders, derived.Forwarders},
		{"Migrations", n.Migrations, derived.Migrations},
		{"Inbox", n.Inbox, derived.Inbox},
		{"Queue", n.Queue, derived.Queue},
		{"Audit", n.Audit, derived.Audit},
		{"Idempotency", n.Idempotency, derived.Idempotency},
	}
	used := map[string]string{}
	for _, suffix := range []string{
		"_id_seq", "_ready", "_waiting", "_dead", "_held", "_dead_topics", "_failing", "_life", "_life_pkey", "_topics",
		"_topics_pkey", "_default",
	} {
		used[n.Outbox+suffix] = "an index, a sequence or a companion of Outbox"
	}
	for _, suffix := range []string{"_processed", "_failed", "_dead", "_failing"} {
		used[n.Inbox+suffix] = "an index of Inbox"
	}
	for _, suffix := range []string{"_id_seq", "_ready", "_waiting", "_expiring", "_dead", "_done", "_seen"} {
		used[n.Queue+suffix] = "an index or a sequence of Queue"
	}
	used[n.Idempotency+"_done"] = "an index of Idempotency"
	for _, t := range tables {
		used[t.name+"_pkey"] = "an index of " + t.field
	}
	for _, t := range tables {
		number, ok := strings.CutPrefix(t.name, n.Outbox+"_p")
		if ok && number != "" && strings.Trim(number, "0123456789") == "" {
			return fmt.Errorf("%w: %s is %q, as a partition of Outbox may be called", ErrBadName, t.field, t.name)
		}
		if t.name != t.derived && !nameShape.MatchString(t.name) {
			return fmt.Errorf("%w: %s is %q; use letters, digits, _, $ and -, at most 40", ErrBadName, t.field, t.name)
		}
		if other, ok := used[t.name]; ok {
			return fmt.Errorf("%w: %s and %s are both %q", ErrBadName, other, t.field, t.name)
		}
		used[t.name] = t.field
	}
	if n.Schema != "" && !nameShape.MatchString(n.Schema) {
		return fmt.Errorf("%w: Schema is %q; use letters, digits, _, $ and -, at most 40", ErrBadName, n.Schema)
	}
	return nil
}

// Render replaces the placeholders of a statement of this package by quoted identifiers. It must be
// called on names that Validate accepts.
func (n Tables) Render(statement string) string {
	r := last.Load()
	if r == nil || r.of != n {
		r = &renderer{n, n.WithDefaults().replacer()}
		last.Store(r)
	}
	return r.Replace(strings.ReplaceAll(statement, "{life}", life))
}

// renderer is cached, because most programs have one set of names, and making it costs more than using it.
type renderer struct {
	of Tables
	*strings.Replacer
}

var last atomic.Pointer[renderer]

func (n Tables) replacer() *strings.Replacer {
	return strings.NewReplacer(
		"{outbox}", n.qualified(n.Outbox),
		"{outbox_text}", "'"+n.qualified(n.Outbox)+"'",
		"{outbox_id_seq}", n.qualified(n.Outbox+"_id_seq"),
		"{outbox_id_seq_text}", "'"+n.qualified(n.Outbox+"_id_seq")+"'",
		"{outbox_default}", n.qualified(n.Outbox+"_default"),
		"{outbox_p0}", n.qualified(n.Outbox+"_p0"),
		"{outbox_p1}", n.qualified(n.Outbox+"_p1"),
		"{outbox_p2}", n.qualified(n.Outbox+"_p2"),
		"{outbox_p3}", n.qualified(n.Outbox+"_p3"),
		"{outbox_p4}", n.qualified(n.Outbox+"_p4"),
		"{outbox_p5}", n.qualified(n.Outbox+"_p5"),
		"{outbox_p6}", n.qualified(n.Outbox+"_p6"),
		"{outbox_p7}", n.qualified(n.Outbox+"_p7"),
		"{outbox_p8}", n.qualified(n.Outbox+"_p8"),
		"{outbox_ready}", Quote(n.Outbox+"_ready"),
		"{outbox_waiting}", Quote(n.Outbox+"_waiting"),
		"{outbox_dead}", Quote(n.Outbox+"_dead"),
		"{outbox_held}", Quote(n.Outbox+"_held"),
		"{outbox_dead_topics}", Quote(n.Outbox+"_dead_topics"),
		"{outbox_failing}", Quote(n.Outbox+"_failing"),
		"{outbox_life}", n.qualified(n.Outbox+"_life"),
		"{outbox_topics}", n.qualified(n.Outbox+"_topics"),
		"{lanes}", n.qualified(n.Lanes),
		"{forwarders}", n.qualified(n.Forwarders),
		"{migrations}", n.qualified(n.Migrations),
		"{inbox}", n.qualified(n.Inbox),
		"{inbox_processed}", Quote(n.Inbox+"_processed"),
		"{inbox_failed}", Quote(n.Inbox+"_failed"),
		"{queue}", n.qualified(n.Queue),
		"{queue_id_seq}", n.qualified(n.Queue+"_id_seq"),
		"{queue_text}", "'"+n.qualified(n.Queue)+"'",
		"{queue_id_seq_text}", "'"+n.qualified(n.Queue+"_id_seq")+"'",
		"{queue_ready}", Quote(n.Queue+"_ready"),
		"{queue_waiting}", Quote(n.Queue+"_waiting"),
		"{queue_expiring}", Quote(n.Queue+"_expiring"),
		"{queue_dead}", Quote(n.Queue+"_dead"),
		"{queue_done}", Quote(n.Queue+"_done"),
		"{queue_seen}", Quote(n.Queue+"_seen"),
		"{inbox_dead}", Quote(n.Inbox+"_dead"),
		"{inbox_failing}", Quote(n.Inbox+"_failing"),
		"{audit}", n.qualified(n.Audit),
		"{idempotency}", n.qualified(n.Idempotency),
		"{idempotency_done}", Quote(n.Idempotency+"_done"),
	)
}

// OutboxName returns the qualified, quoted name of the outbox table, for messages and as the
// identity of a table set within one database.
func (n Tables) OutboxName() string {
	n = n.WithDefaults()
	return n.qualified(n.Outbox)
}

// Channel returns the name of the notification channel for commits of messages.
func (n Tables) Channel() string {
	h := fnv.New64a()
	h.Write([]byte(n.OutboxName()))
	return fmt.Sprintf("outbox_%016x", h.Sum64())
}

func (n Tables) qualified(table string) string {
	if n.Schema == "" {
		return Quote(table)
	}
	return Quote(n.Schema) + "." + Quote(table)
}

// InSchema renders the placeholder of an index for statements that take a schema with its name.
func (n Tables) InSchema(index string) string {
	if n.Schema == "" {
		return n.Render(index)
	}
	return Quote(n.Schema) + "." + n.Render(index)
}

// Quote writes a name as an identifier.
func Quote(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}
