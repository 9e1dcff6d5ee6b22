CREATE SEQUENCE {outbox_id_seq} AS bigint INCREMENT 1 CACHE 1 NO CYCLE;

-- The default assigns the transaction id before it takes the row id: the forwarder's exact order rests on that.
CREATE TABLE {outbox} (
    id           bigint      PRIMARY KEY
                             DEFAULT (CASE WHEN pg_current_xact_id() IS NOT NULL
                                           THEN nextval({outbox_id_seq_text}::regclass) END),
    uuid         text        NOT NULL,
    -- What is longer does not fit into the indexes of dead and failing messages.
    topic        text        NOT NULL CHECK (octet_length(topic) <= 1024),
    key          text        NOT NULL DEFAULT '',
    lane         smallint    NOT NULL
                             GENERATED ALWAYS AS ((hashtext(CASE WHEN key = '' THEN uuid ELSE key END) & 63)::smallint) STORED,
    payload      bytea,      -- NULL is a payload of its own: Kafka calls it a tombstone.
    metadata     jsonb       NOT NULL DEFAULT '{}',
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at       timestamptz,
    attempts     integer     NOT NULL DEFAULT 0,
    last_error   text,
    published_at timestamptz,
    dead_at      timestamptz,
    -- What went wrong with a message and what operators did to it, oldest first: a JSON array, or NULL.
    history      jsonb
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);

ALTER SEQUENCE {outbox_id_seq} OWNED BY {outbox}.id;

CREATE INDEX {outbox_ready} ON {outbox} (lane, id)
    WHERE published_at IS NULL AND dead_at IS NULL AND due_at IS NULL;

CREATE INDEX {outbox_waiting} ON {outbox} (lane, due_at, id)
    WHERE published_at IS NULL AND dead_at IS NULL AND due_at IS NOT NULL;

CREATE INDEX {outbox_dead} ON {outbox} (lane, id)
    WHERE dead_at IS NOT NULL;

-- What holds its key, among what may be many more messages that are only delayed.
CREATE INDEX {outbox_held} ON {outbox} (lane, id)
    WHERE attempts > 0 AND key <> '' AND published_at IS NULL AND dead_at IS NULL;

-- Package admin finds dead and failing messages by topic with these. Few messages die or fail, so writers do not pay. The
-- predicates are worded so that no statement of a forwarder can use them in the place of the two above.
CREATE INDEX {outbox_dead_topics} ON {outbox} (topic, id)
    WHERE dead_at >= '-infinity' AND published_at IS NULL;

CREATE INDEX {outbox_failing} ON {outbox} (topic, id)
    WHERE attempts >= 1 AND published_at IS NULL AND dead_at IS NULL;

-- An id means a message within one life of the server. A crash, a promotion and a restored backup empty what is unlogged,
-- so the token that the next forwarder writes is another one.
CREATE UNLOGGED TABLE {outbox_life} (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    token uuid    NOT NULL DEFAULT gen_random_uuid()
);

CREATE TABLE {lanes} (
    scope text     NOT NULL,
    lane  smallint NOT NULL,
    owner uuid,
    epoch bigint   NOT NULL DEFAULT 0,
    PRIMARY KEY (scope, lane)
);

CREATE TABLE {forwarders} (
    id            uuid        PRIMARY KEY,
    scope         text        NOT NULL,
    topics        text[]      NOT NULL,
    name          text        NOT NULL,
    expires_at    timestamptz NOT NULL,
    leaving       boolean     NOT NULL DEFAULT false,
    waiting_since timestamptz,
    facts         jsonb       NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);

-- Which topics are paused, and by whom: a forwarder whose broker does not answer, or (the zero uuid) an operator.
CREATE TABLE {outbox_topics} (
    topic     text        NOT NULL,
    forwarder uuid        NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    failures  integer     NOT NULL DEFAULT 0,
    reason    text,
    PRIMARY KEY (topic, forwarder)
);

CREATE TABLE {inbox} (
    consumer     text        NOT NULL,
    message_id   text        NOT NULL,
    received_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    processed_at timestamptz,
    dead_at      timestamptz,
    attempts     integer     NOT NULL DEFAULT 0,
    revived      integer     NOT NULL DEFAULT 0,
    last_error   text,
    -- What went wrong with a message and what operators did to it, oldest first: a JSON array, or NULL.
    history      jsonb,
    hash         bytea,
    PRIMARY KEY (consumer, message_id)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);

-- A BRIN index would cost writers less, but finds nothing once new rows fill the pages of deleted ones.
CREATE INDEX {inbox_processed} ON {inbox} (processed_at);

-- Of messages that failed and were not handled since: few, so that clean-up finds the old ones at once.
CREATE INDEX {inbox_failed} ON {inbox} (received_at) WHERE processed_at IS NULL AND dead_at IS NULL;

-- The same for the consumers of the inbox.
CREATE INDEX {inbox_dead} ON {inbox} (consumer, received_at, message_id)
    WHERE dead_at IS NOT NULL AND processed_at IS NULL;

CREATE INDEX {inbox_failing} ON {inbox} (consumer, received_at, message_id)
    WHERE processed_at IS NULL AND dead_at IS NULL;

-- Who did what and why. The role is who was logged in, whoever the actor says that he is.
CREATE TABLE {audit} (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    role     text        NOT NULL DEFAULT session_user,
    actor    text        NOT NULL,
    action   text        NOT NULL,
    reason   text        NOT NULL DEFAULT '',
    filter   jsonb       NOT NULL DEFAULT '{}',
    matched  bigint      NOT NULL DEFAULT 0,
    touched  bigint      NOT NULL DEFAULT 0,
    skipped  bigint      NOT NULL DEFAULT 0,
    compared bigint      NOT NULL DEFAULT 0,
    ended_at timestamptz,
    outcome  text        NOT NULL DEFAULT ''
);
