-- The result of schema.Roles for tables with the default names.

DO $$ BEGIN CREATE ROLE "outbox_writer" NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE "outbox_worker" NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE "outbox_forwarder" NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE "outbox_cleaner" NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE "outbox_admin" NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE "outbox_mover" NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE "outbox_reader" NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;

-- Publisher, InTx and the middlewares. The ids come from a sequence. This role cannot read messages.
GRANT USAGE ON SEQUENCE "outbox_id_seq" TO "outbox_writer";
GRANT INSERT (uuid, topic, key, payload, metadata, due_at) ON "outbox" TO "outbox_writer";
GRANT SELECT, INSERT, UPDATE ON "inbox" TO "outbox_writer";

-- Package idempotency is a writer too. It reads stored answers to repeat them.
GRANT SELECT, INSERT, UPDATE ON "outbox_idempotency" TO "outbox_writer";

-- Package queue: its messages are stored, claimed and deleted by the same programs.
GRANT USAGE, SELECT ON SEQUENCE "inbox_queue_id_seq" TO "outbox_worker";
GRANT SELECT, INSERT, UPDATE, DELETE ON "inbox_queue" TO "outbox_worker";
GRANT SELECT ON "outbox_topics" TO "outbox_worker";

-- Forwarder and Subscriber. They also delete old rows of the inbox and expired answers. Locking rows requires UPDATE on
-- any column.
GRANT SELECT ON SEQUENCE "outbox_id_seq" TO "outbox_forwarder";
GRANT SELECT, DELETE ON "outbox" TO "outbox_forwarder";
GRANT UPDATE (due_at, attempts, last_error, published_at, dead_at, history) ON "outbox" TO "outbox_forwarder";
GRANT SELECT, INSERT, UPDATE, DELETE ON "outbox_lanes", "outbox_forwarders", "outbox_topics" TO "outbox_forwarder";
GRANT SELECT, INSERT ON "outbox_life" TO "outbox_forwarder";
GRANT SELECT ON "outbox_migrations" TO "outbox_forwarder";
GRANT SELECT, UPDATE (processed_at), DELETE ON "inbox" TO "outbox_forwarder";
GRANT SELECT (ctid, expires_at), UPDATE (expires_at), DELETE ON "outbox_idempotency" TO "outbox_forwarder";

-- admin.Clean.
GRANT SELECT ON SEQUENCE "outbox_id_seq" TO "outbox_cleaner";
GRANT SELECT (id, topic, created_at, published_at), DELETE ON "outbox" TO "outbox_cleaner";
GRANT SELECT, UPDATE (processed_at), DELETE ON "inbox" TO "outbox_cleaner";
GRANT SELECT (ctid, state, done_at, last_seen_at), UPDATE (done_at), DELETE ON "inbox_queue" TO "outbox_cleaner";
GRANT SELECT (ctid, expires_at), UPDATE (expires_at), DELETE ON "outbox_idempotency" TO "outbox_cleaner";
GRANT SELECT (id, matched, touched), INSERT (actor, action, reason, filter), UPDATE (matched, touched, ended_at, outcome) ON "outbox_audit" TO "outbox_cleaner";

-- Package admin except Clean. It can add and end entries of the audit log, but not delete them.
GRANT SELECT ON "outbox", "inbox", "inbox_queue", "outbox_lanes", "outbox_forwarders", "outbox_topics", "outbox_life", "outbox_migrations", "outbox_audit" TO "outbox_admin";
GRANT SELECT ON SEQUENCE "outbox_id_seq", "inbox_queue_id_seq" TO "outbox_admin";
GRANT USAGE ON SEQUENCE "outbox_id_seq" TO "outbox_admin";
GRANT INSERT (uuid, topic, key, payload, metadata) ON "outbox" TO "outbox_admin";
GRANT SELECT (tenant, method, route, key, created_at, expires_at, status) ON "outbox_idempotency" TO "outbox_admin";
GRANT UPDATE (metadata, due_at, attempts, last_error, published_at, dead_at, history) ON "outbox" TO "outbox_admin";
GRANT INSERT (consumer, message_id, processed_at), UPDATE (received_at, processed_at, dead_at, attempts, revived, last_error, history) ON "inbox" TO "outbox_admin";
GRANT UPDATE (state, due_at, expires_at, attempts, crashes, last_error, done_at, owner, locked_until, history) ON "inbox_queue" TO "outbox_admin";
GRANT INSERT, UPDATE, DELETE ON "outbox_topics" TO "outbox_admin";
GRANT INSERT (actor, action, reason, filter, touched, ended_at), UPDATE (matched, touched, skipped, compared, ended_at, outcome) ON "outbox_audit" TO "outbox_admin";

-- Package move, in both directions. Locking rows requires UPDATE on any column.
GRANT USAGE ON SEQUENCE "outbox_id_seq" TO "outbox_mover";
GRANT SELECT, INSERT (uuid, topic, key, payload, metadata, due_at, dead_at, last_error), UPDATE (last_error), DELETE ON "outbox" TO "outbox_mover";
GRANT SELECT (name, expires_at) ON "outbox_forwarders" TO "outbox_mover";
GRANT SELECT (id, matched, touched), INSERT (actor, action, reason, filter), UPDATE (matched, touched, ended_at, outcome) ON "outbox_audit" TO "outbox_mover";

-- Readers. For payloads: GRANT SELECT (payload) ON "outbox", "inbox_queue" TO "outbox_reader";
GRANT SELECT (id, uuid, topic, key, lane, metadata, created_at, due_at, attempts, last_error, published_at, dead_at,
              history) ON "outbox" TO "outbox_reader";
GRANT SELECT (id, source, message_id, topic, key, state, metadata, first_seen_at, last_seen_at, due_at, expires_at, attempts, crashes,
              last_error, done_at, owner, locked_until, history) ON "inbox_queue" TO "outbox_reader";
GRANT SELECT ON "inbox", "outbox_lanes", "outbox_forwarders", "outbox_topics", "outbox_life", "outbox_migrations", "outbox_audit" TO "outbox_reader";
GRANT SELECT (tenant, method, route, key, created_at, expires_at, status) ON "outbox_idempotency" TO "outbox_reader";
GRANT SELECT ON SEQUENCE "outbox_id_seq", "inbox_queue_id_seq" TO "outbox_reader";
