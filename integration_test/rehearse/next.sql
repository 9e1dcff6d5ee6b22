-- What a migration may do, by docs/reference/stability.md: the version that is rehearsed has it, so that there is an upgrade also while there is none.
ALTER TABLE {outbox} ADD COLUMN rehearsed text NOT NULL DEFAULT 'no';
ALTER TABLE {inbox} ADD COLUMN rehearsed text;
ALTER TABLE {queue} ADD COLUMN rehearsed integer NOT NULL DEFAULT 0;
ALTER TABLE {lanes} ADD COLUMN rehearsed integer;
ALTER TABLE {forwarders} ADD COLUMN rehearsed jsonb NOT NULL DEFAULT '{}';
ALTER TABLE {outbox_topics} ADD COLUMN rehearsed text;
ALTER TABLE {audit} ADD COLUMN rehearsed text;
ALTER TABLE {idempotency} ADD COLUMN rehearsed text;
CREATE TABLE rehearsed (id bigint PRIMARY KEY);
