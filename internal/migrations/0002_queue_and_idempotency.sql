CREATE SEQUENCE {queue_id_seq} AS bigint INCREMENT 1 CACHE 1 NO CYCLE;

-- The default assigns the transaction id before it takes the row id: the low mark of those who claim rests on that.
CREATE TABLE {queue} (
    id            bigint      NOT NULL
                              DEFAULT (CASE WHEN pg_current_xact_id() IS NOT NULL
                                            THEN nextval({queue_id_seq_text}::regclass) END),
    source        text        NOT NULL CHECK (source <> '' AND char_length(source) <= 255),
    message_id    text        NOT NULL CHECK (message_id <> '' AND char_length(message_id) <= 255),
    topic         text        NOT NULL DEFAULT '' CHECK (char_length(topic) <= 255),
    key           text        NOT NULL DEFAULT '',
    state         text        NOT NULL DEFAULT 'seen' CHECK (state IN ('seen', 'processing', 'done', 'dead')),
    payload       bytea       DEFAULT '',
    metadata      jsonb       NOT NULL DEFAULT '{}',
    hash          bytea,
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at        timestamptz,
    expires_at    timestamptz,
    attempts      integer     NOT NULL DEFAULT 0,
    crashes       integer     NOT NULL DEFAULT 0,
    last_error    text,
    history       jsonb, -- as in {outbox}
    done_at       timestamptz,
    owner         uuid,
    locked_until  timestamptz,
    PRIMARY KEY (source, message_id),
    -- Without a topic only whoever called MarkProcessing works on it.
    CHECK (state <> 'processing' OR topic <> '' OR due_at = 'infinity')
) WITH (
    fillfactor = 60,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000
);

ALTER SEQUENCE {queue_id_seq} OWNED BY {queue}.id;

-- What was never claimed. Nothing comes back here: what goes back has a due time.
CREATE INDEX {queue_ready} ON {queue} (id)
    WHERE state = 'processing' AND due_at IS NULL;

CREATE INDEX {queue_waiting} ON {queue} (due_at, id)
    WHERE state = 'processing' AND due_at IS NOT NULL;

CREATE INDEX {queue_expiring} ON {queue} (expires_at)
    WHERE state = 'processing' AND expires_at IS NOT NULL;

CREATE INDEX {queue_dead} ON {queue} (id)
    WHERE state = 'dead';

CREATE INDEX {queue_done} ON {queue} (done_at)
    WHERE state = 'done';

CREATE INDEX {queue_seen} ON {queue} (last_seen_at)
    WHERE state = 'seen';

CREATE TABLE {idempotency} (
    -- A row is written when its request begins and gets the answer in the same transaction: others see both or neither.
    tenant      text        NOT NULL CHECK (octet_length(tenant) <= 255),
    method      text        NOT NULL CHECK (octet_length(method) <= 32),
    route       text        NOT NULL CHECK (octet_length(route) <= 1024),
    key         text        NOT NULL CHECK (key <> '' AND octet_length(key) <= 255),
    fingerprint bytea       NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at  timestamptz NOT NULL,
    status      integer,
    header      bytea,
    body        bytea,
    PRIMARY KEY (tenant, method, route, key)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);

CREATE INDEX {idempotency_done} ON {idempotency} (expires_at);
