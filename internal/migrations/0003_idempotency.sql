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

-- As that of the inbox: rows arrive in the order of time, and writers hardly pay for it.
CREATE INDEX {idempotency_done} ON {idempotency} USING brin (expires_at) WITH (pages_per_range = 32, autosummarize = on);
