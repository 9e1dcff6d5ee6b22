package schema

import (
	"fmt"
	"strings"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// RolesConfig configures Roles.
type RolesConfig struct {
	// Tables are the names of the tables, as in outbox.DBConfig.
	Tables outbox.Tables
	// Prefix is the prefix of the roles' names; default: the outbox's name and "_", so "outbox_writer". Set it if several
	// databases of a server have their own roles, because roles belong to the server.
	Prefix string
}

// Roles returns SQL that creates one role without login for each part of this module, with minimal grants. Grant them
// to the roles that your programs log in with. The owner of the tables runs it after Migrate, any number of times.
//
//   - writer: Publisher, InTx and the middlewares. It cannot read messages.
//   - worker: package queue.
//   - forwarder: Forwarder and Subscriber.
//   - cleaner: admin.Clean, if forwarders do not delete old rows.
//   - admin: the rest of package admin.
//   - mover: outboxctl import and export. The owner of the other tables grants their use.
//   - reader: the queries of package admin. It cannot change anything or read payloads.
//
// It returns an error that names an invalid table or field.
func Roles(cfg RolesConfig) (string, error) {
	if err := sqltext.Tables(cfg.Tables).Validate(); err != nil {
		return "", fmt.Errorf("RolesConfig.Tables: %w", err)
	}
	names := sqltext.Tables(cfg.Tables).WithDefaults()
	if cfg.Prefix == "" {
		cfg.Prefix = names.Outbox + "_"
	}
	if len(cfg.Prefix) > 48 || !text.Storable(cfg.Prefix) || strings.ContainsAny(cfg.Prefix, `"'`) {
		return "", fmt.Errorf("RolesConfig.Prefix must be UTF-8 without NUL and quotes, of at most 48 bytes")
	}
	var all, placeholders []string
	for _, r := range roleNames {
		name := sqltext.Quote(cfg.Prefix + r)
		all, placeholders = append(all, name), append(placeholders, "<"+r+">", name)
	}
	usage := ""
	if names.Schema != "" {
		usage = "GRANT USAGE ON SCHEMA " + sqltext.Quote(names.Schema) + " TO " + strings.Join(all, ", ") + ";\n\n"
	}
	create := ""
	for _, name := range all {
		create += fmt.Sprintf("DO $$ BEGIN CREATE ROLE %s NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;\n",
			name)
	}
	return create + "\n" + usage + strings.NewReplacer(placeholders...).Replace(names.Render(roles)), nil
}

var roleNames = []string{"writer", "worker", "forwarder", "cleaner", "admin", "mover", "reader"}

const roles = `-- Publisher, InTx and the middlewares. The ids come from a sequence. This role cannot read messages.
GRANT USAGE ON SEQUENCE {outbox_id_seq} TO <writer>;
GRANT INSERT (uuid, topic, key, payload, metadata, due_at) ON {outbox} TO <writer>;
GRANT SELECT, INSERT, UPDATE ON {inbox} TO <writer>;

-- Package idempotency is a writer too. It reads stored answers to repeat them.
GRANT SELECT, INSERT, UPDATE ON {idempotency} TO <writer>;

-- Package queue: its messages are stored, claimed and deleted by the same programs.
GRANT USAGE, SELECT ON SEQUENCE {queue_id_seq} TO <worker>;
GRANT SELECT, INSERT, UPDATE, DELETE ON {queue} TO <worker>;
GRANT SELECT ON {outbox_topics} TO <worker>;

-- Forwarder and Subscriber. They also delete old rows of the inbox and expired answers. Locking rows requires UPDATE on
-- any column.
GRANT SELECT ON SEQUENCE {outbox_id_seq} TO <forwarder>;
GRANT SELECT, DELETE ON {outbox} TO <forwarder>;
GRANT UPDATE (due_at, attempts, last_error, published_at, dead_at, history) ON {outbox} TO <forwarder>;
GRANT SELECT, INSERT, UPDATE, DELETE ON {lanes}, {forwarders}, {outbox_topics} TO <forwarder>;
GRANT SELECT, INSERT ON {outbox_life} TO <forwarder>;
GRANT SELECT ON {migrations} TO <forwarder>;
GRANT SELECT, UPDATE (processed_at), DELETE ON {inbox} TO <forwarder>;
GRANT SELECT (ctid, expires_at), UPDATE (expires_at), DELETE ON {idempotency} TO <forwarder>;

-- admin.Clean.
GRANT SELECT ON SEQUENCE {outbox_id_seq} TO <cleaner>;
GRANT SELECT (id, topic, created_at, published_at), DELETE ON {outbox} TO <cleaner>;
GRANT SELECT, UPDATE (processed_at), DELETE ON {inbox} TO <cleaner>;
GRANT SELECT (ctid, state, done_at, last_seen_at), UPDATE (done_at), DELETE ON {queue} TO <cleaner>;
GRANT SELECT (ctid, expires_at), UPDATE (expires_at), DELETE ON {idempotency} TO <cleaner>;
GRANT SELECT (id, matched, touched), INSERT (actor, action, reason, filter), UPDATE (matched, touched, ended_at, outcome) ON {audit} TO <cleaner>;

-- Package admin except Clean. It can add and end entries of the audit log, but not delete them.
GRANT SELECT ON {outbox}, {inbox}, {queue}, {lanes}, {forwarders}, {outbox_topics}, {outbox_life}, {migrations}, {audit} TO <admin>;
GRANT SELECT ON SEQUENCE {outbox_id_seq}, {queue_id_seq} TO <admin>;
GRANT USAGE ON SEQUENCE {outbox_id_seq} TO <admin>;
GRANT INSERT (uuid, topic, key, payload, metadata) ON {outbox} TO <admin>;
GRANT SELECT (tenant, method, route, key, created_at, expires_at, status) ON {idempotency} TO <admin>;
GRANT UPDATE (metadata, due_at, attempts, last_error, published_at, dead_at, history) ON {outbox} TO <admin>;
GRANT INSERT (consumer, message_id, processed_at), UPDATE (received_at, processed_at, dead_at, attempts, revived, last_error, history) ON {inbox} TO <admin>;
GRANT UPDATE (state, due_at, expires_at, attempts, crashes, last_error, done_at, owner, locked_until, history) ON {queue} TO <admin>;
GRANT INSERT, UPDATE, DELETE ON {outbox_topics} TO <admin>;
GRANT INSERT (actor, action, reason, filter, touched, ended_at), UPDATE (matched, touched, skipped, compared, ended_at, outcome) ON {audit} TO <admin>;

-- Package move, in both directions. Locking rows requires UPDATE on any column.
GRANT USAGE ON SEQUENCE {outbox_id_seq} TO <mover>;
GRANT SELECT, INSERT (uuid, topic, key, payload, metadata, due_at, dead_at, last_error), UPDATE (last_error), DELETE ON {outbox} TO <mover>;
GRANT SELECT (name, expires_at) ON {forwarders} TO <mover>;
GRANT SELECT (id, matched, touched), INSERT (actor, action, reason, filter), UPDATE (matched, touched, ended_at, outcome) ON {audit} TO <mover>;

-- Readers. For payloads: GRANT SELECT (payload) ON {outbox}, {queue} TO <reader>;
GRANT SELECT (id, uuid, topic, key, lane, metadata, created_at, due_at, attempts, last_error, published_at, dead_at,
              history) ON {outbox} TO <reader>;
GRANT SELECT (id, source, message_id, topic, key, state, metadata, first_seen_at, last_seen_at, due_at, expires_at, attempts, crashes,
              last_error, done_at, owner, locked_until, history) ON {queue} TO <reader>;
GRANT SELECT ON {inbox}, {lanes}, {forwarders}, {outbox_topics}, {outbox_life}, {migrations}, {audit} TO <reader>;
GRANT SELECT (tenant, method, route, key, created_at, expires_at, status) ON {idempotency} TO <reader>;
GRANT SELECT ON SEQUENCE {outbox_id_seq}, {queue_id_seq} TO <reader>;
`
