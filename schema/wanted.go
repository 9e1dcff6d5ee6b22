package schema

import (
	"strings"
)

// wantedTable is what the statements of this package rely on, in the words in which Postgres describes it.
type wantedTable struct {
	name    string // placeholder
	columns []wantedColumn
	unique  string // columns of the primary key
	indexes []wantedIndex
	seq     string // placeholder of the sequence of its ids
	vacuum  bool   // starves under the default settings of autovacuum
	crashes bool   // a crash must empty it

	forwarder []string // privileges that every forwarder needs
	others    []string // privileges that some parts need
}

// create is how the statement that makes the table begins.
func (w wantedTable) create(name string) string {
	if w.crashes {
		return "CREATE UNLOGGED TABLE " + name + " "
	}
	return "CREATE TABLE " + name + " "
}

type wantedColumn struct {
	name, kind string
	null       bool
	generated  bool
	identity   bool
	spare      bool   // statements do without it, in a database at an older migration
	expression string // default or generation expression; {seq} is the sequence
}

type wantedIndex struct {
	name      string // placeholder
	method    string
	columns   string
	predicate string
}

// idDefault assigns the transaction id before it takes the row id.
const idDefault = "CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('{seq}'::regclass) ELSE NULL::bigint END"

var wanted = []wantedTable{
	{
		name: "{outbox}", unique: "id", seq: "{outbox_id_seq}", vacuum: true,
		forwarder: []string{"SELECT", "UPDATE", "DELETE"},
		others:    []string{"INSERT"},
		columns: []wantedColumn{
			{name: "id", kind: "bigint", expression: idDefault},
			{name: "uuid", kind: "text"},
			{name: "topic", kind: "text"},
			{name: "key", kind: "text", expression: "''"},
			{
				name: "lane", kind: "smallint", generated: true,
				expression: "(hashtext(CASE WHEN key = '' THEN uuid ELSE key END) & 63)::smallint",
			},
			{name: "payload", kind: "bytea"},
			{name: "metadata", kind: "jsonb", expression: "'{}'::jsonb"},
			{name: "created_at", kind: "timestamp with time zone", expression: "clock_timestamp()"},
			{name: "due_at", kind: "timestamp with time zone", null: true},
			{name: "attempts", kind: "integer", expression: "0"},
			{name: "last_error", kind: "text", null: true},
			{name: "published_at", kind: "timestamp with time zone", null: true},
			{name: "dead_at", kind: "timestamp with time zone", null: true},
			{name: "history", kind: "jsonb", null: true, spare: true},
		},
		indexes: []wantedIndex{
			{"{outbox_ready}", "btree", "lane, id", "published_at IS NULL AND dead_at IS NULL AND due_at IS NULL"},
			{"{outbox_waiting}", "btree", "lane, due_at, id", "published_at IS NULL AND dead_at IS NULL AND due_at IS NOT NULL"},
			{"{outbox_dead}", "btree", "lane, id", "dead_at IS NOT NULL"},
			{"{outbox_held}", "btree", "lane, id", "attempts > 0 AND key <> '' AND published_at IS NULL AND dead_at IS NULL"},
			{
				"{outbox_dead_topics}", "btree", "topic, id",
				"dead_at >= '-infinity'::timestamp with time zone AND published_at IS NULL",
			},
			{"{outbox_failing}", "btree", "topic, id", "attempts >= 1 AND published_at IS NULL AND dead_at IS NULL"},
		},
	},
	{
		name: "{lanes}", unique: "scope, lane",
		forwarder: []string{"SELECT", "INSERT", "UPDATE", "DELETE"},
		columns: []wantedColumn{
			{name: "scope", kind: "text"},
			{name: "lane", kind: "smallint"},
			{name: "owner", kind: "uuid", null: true},
			{name: "epoch", kind: "bigint", expression: "0"},
		},
	},
	{
		name: "{forwarders}", unique: "id",
		forwarder: []string{"SELECT", "INSERT", "UPDATE", "DELETE"},
		columns: []wantedColumn{
			{name: "id", kind: "uuid"},
			{name: "scope", kind: "text"},
			{name: "topics", kind: "text[]"},
			{name: "name", kind: "text"},
			{name: "expires_at", kind: "timestamp with time zone"},
			{name: "leaving", kind: "boolean", expression: "false"},
			{name: "waiting_since", kind: "timestamp with time zone", null: true},
			{name: "facts", kind: "jsonb", expression: "'{}'::jsonb"},
		},
	},
	{
		name: "{outbox_life}", unique: "one", crashes: true,
		forwarder: []string{"SELECT", "INSERT"},
		columns: []wantedColumn{
			{name: "one", kind: "boolean", expression: "true"},
			{name: "token", kind: "uuid", expression: "gen_random_uuid()"},
		},
	},
	{
		name: "{outbox_topics}", unique: "topic, forwarder",
		forwarder: []string{"SELECT", "INSERT", "UPDATE", "DELETE"},
		columns: []wantedColumn{
			{name: "topic", kind: "text"},
			{name: "forwarder", kind: "uuid"},
			{name: "paused_at", kind: "timestamp with time zone", expression: "clock_timestamp()"},
			{name: "failures", kind: "integer", expression: "0"},
			{name: "reason", kind: "text", null: true},
		},
	},
	{
		name: "{inbox}", unique: "consumer, message_id", vacuum: true,
		others: []string{"SELECT", "INSERT", "UPDATE", "DELETE"},
		columns: []wantedColumn{
			{name: "consumer", kind: "text"},
			{name: "message_id", kind: "text"},
			{name: "received_at", kind: "timestamp with time zone", expression: "clock_timestamp()"},
			{name: "processed_at", kind: "timestamp with time zone", null: true},
			{name: "dead_at", kind: "timestamp with time zone", null: true},
			{name: "attempts", kind: "integer", expression: "0"},
			{name: "revived", kind: "integer", expression: "0"},
			{name: "last_error", kind: "text", null: true},
			{name: "hash", kind: "bytea", null: true},
			{name: "history", kind: "jsonb", null: true, spare: true},
		},
		indexes: []wantedIndex{
			{"{inbox_processed}", "brin", "processed_at", ""},
			{"{inbox_failed}", "btree", "received_at", "processed_at IS NULL AND dead_at IS NULL"},
			{"{inbox_dead}", "btree", "consumer, received_at, message_id", "dead_at IS NOT NULL AND processed_at IS NULL"},
			{"{inbox_failing}", "btree", "consumer, received_at, message_id", "processed_at IS NULL AND dead_at IS NULL"},
		},
	},
	{
		name: "{audit}", unique: "id", // neither forwarders nor publishers need it
		columns: []wantedColumn{
			{name: "id", kind: "bigint", identity: true},
			{name: "at", kind: "timestamp with time zone", expression: "clock_timestamp()"},
			{name: "role", kind: "text", expression: "SESSION_USER"},
			{name: "actor", kind: "text"},
			{name: "action", kind: "text"},
			{name: "reason", kind: "text", expression: "''"},
			{name: "filter", kind: "jsonb", expression: "'{}'::jsonb"},
			{name: "matched", kind: "bigint", expression: "0"},
			{name: "touched", kind: "bigint", expression: "0"},
			{name: "skipped", kind: "bigint", expression: "0"},
			{name: "compared", kind: "bigint", expression: "0"},
			{name: "ended_at", kind: "timestamp with time zone", null: true},
			{name: "outcome", kind: "text", expression: "''"},
		},
	},
	{
		name: "{queue}", unique: "source, message_id", seq: "{queue_id_seq}", vacuum: true,
		others: []string{"SELECT", "INSERT", "UPDATE", "DELETE"},
		columns: []wantedColumn{
			{name: "id", kind: "bigint", expression: idDefault},
			{name: "source", kind: "text"},
			{name: "message_id", kind: "text"},
			{name: "topic", kind: "text", expression: "''"},
			{name: "key", kind: "text", expression: "''"},
			{name: "state", kind: "text", expression: "'seen'"},
			{name: "payload", kind: "bytea", expression: `'\x'::bytea`},
			{name: "metadata", kind: "jsonb", expression: "'{}'::jsonb"},
			{name: "hash", kind: "bytea", null: true},
			{name: "history", kind: "jsonb", null: true, spare: true},
			{name: "first_seen_at", kind: "timestamp with time zone", expression: "clock_timestamp()"},
			{name: "last_seen_at", kind: "timestamp with time zone", expression: "clock_timestamp()"},
			{name: "due_at", kind: "timestamp with time zone", null: true},
			{name: "expires_at", kind: "timestamp with time zone", null: true},
			{name: "attempts", kind: "integer", expression: "0"},
			{name: "crashes", kind: "integer", expression: "0"},
			{name: "last_error", kind: "text", null: true},
			{name: "done_at", kind: "timestamp with time zone", null: true},
			{name: "owner", kind: "uuid", null: true},
			{name: "locked_until", kind: "timestamp with time zone", null: true},
			{name: "history", kind: "jsonb", null: true, spare: true},
		},
		indexes: []wantedIndex{
			{"{queue_ready}", "btree", "id", "state = 'processing' AND due_at IS NULL"},
			{"{queue_waiting}", "btree", "due_at, id", "state = 'processing' AND due_at IS NOT NULL"},
			{"{queue_expiring}", "btree", "expires_at", "state = 'processing' AND expires_at IS NOT NULL"},
			{"{queue_dead}", "btree", "id", "state = 'dead'"},
			{"{queue_done}", "btree", "done_at", "state = 'done'"},
		},
	},
	{
		name: "{idempotency}", unique: "tenant, method, route, key", vacuum: true,
		others: []string{"SELECT", "INSERT", "UPDATE", "DELETE"},
		columns: []wantedColumn{
			{name: "tenant", kind: "text"},
			{name: "method", kind: "text"},
			{name: "route", kind: "text"},
			{name: "key", kind: "text"},
			{name: "fingerprint", kind: "bytea"},
			{name: "created_at", kind: "timestamp with time zone", expression: "clock_timestamp()"},
			{name: "expires_at", kind: "timestamp with time zone"},
			{name: "status", kind: "integer", null: true},
			{name: "header", kind: "bytea", null: true},
			{name: "body", kind: "bytea", null: true},
		},
		indexes: []wantedIndex{
			{"{idempotency_done}", "brin", "expires_at", ""},
		},
	},
	{
		name: "{migrations}", unique: "version",
		forwarder: []string{"SELECT"},
		columns: []wantedColumn{
			{name: "version", kind: "integer"},
			{name: "name", kind: "text"},
			{name: "checksum", kind: "text"},
			{name: "applied_at", kind: "timestamp with time zone", expression: "clock_timestamp()"},
		},
	},
}

var sameExpression = strings.NewReplacer(
	" ", "", "\n", "", "(", "", ")", "", "pg_catalog.", "",
	"::text", "", "::bigint", "", "::smallint", "", "::jsonb", "", "::regclass", "",
)

// normalized removes from an expression what Postgres adds when it prints one: brackets, casts and
// qualification. Ours have one operator or only ANDs, so that nothing else comes out alike.
func normalized(expression string) string {
	return strings.ToLower(sameExpression.Replace(expression))
}
