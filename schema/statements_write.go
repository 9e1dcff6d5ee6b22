package schema

// InsertMessages writes messages in the order of the arrays. The arrays of due times (RFC 3339 text)
// and delays (seconds on the database's clock) may be NULL as a whole, and ” or a negative number
// says none. unnest hands its rows out in order and the defaults are computed as they pass, so ids rise
// with the position in the arrays.
//
// Arguments: uuids, topics, keys, payloads, metadata (JSON text), due times, delays.
const InsertMessages = `INSERT INTO {outbox} (uuid, topic, key, payload, metadata, due_at)
SELECT m.uuid, m.topic, m.key, m.payload, m.metadata::jsonb,
       CASE WHEN m.delay >= 0 THEN clock_timestamp() + m.delay * interval '1 second'
            ELSE nullif(m.due, '')::timestamptz END
FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::text[], $7::float8[])
     AS m(uuid, topic, key, payload, metadata, due, delay)`
