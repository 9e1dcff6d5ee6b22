package sqltext

// InsertMessages writes messages in the order of the arrays. The arrays of due times (RFC 3339 text) and delays
// (seconds on the database's clock) may be NULL as a whole; an empty text or a negative number means none. A time in
// the past does not delay: the message is ready, in its place among those of its key. unnest returns its rows in order
// and the defaults are computed on the way, so ids ascend with the position in the arrays.
//
// It fails with text.RowsMissing if a trigger kept a row from being stored, so that the transaction cannot commit: the
// statement may be sent together with COMMIT. RETURNING names no column, for which the writer would need SELECT.
//
// Arguments: uuids, topics, keys, payloads, metadata (JSON text), due times, delays.
const InsertMessages = insertMessages + isUTF8 + allStored

const insertMessages = `WITH stored AS (INSERT INTO {outbox} (uuid, topic, key, payload, metadata, due_at)
SELECT m.uuid, m.topic, m.key, m.payload, m.metadata::jsonb,
       CASE WHEN m.delay > 0 THEN clock_timestamp() + m.delay * interval '1 second'
            ELSE CASE WHEN nullif(m.due, '')::timestamptz > clock_timestamp() THEN m.due::timestamptz END END
FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::text[], $7::float8[])
     AS m(uuid, topic, key, payload, metadata, due, delay)
WHERE `

const allStored = ` RETURNING 1)
SELECT FROM (SELECT 1) AS one LIMIT (SELECT CASE count(*) WHEN cardinality($1::text[]) THEN 0 ELSE -1 END FROM stored)`

// A handler's transaction is marked with a setting that ends with it. Writes in it, and COMMIT, check the mark, because
// a handler may send COMMIT or ROLLBACK as plain SQL, and begin or chain another transaction.
const (
	// MarkTx is a SET and not a SELECT, which would take a snapshot before OnBegin can choose the isolation level.
	MarkTx = `set local watermill_outbox.tx = 'open'`

	// isMarked is true, or fails with NotMarked, an SQLSTATE that hardly any other error has.
	isMarked = `width_bucket(0, 0, 1, CASE current_setting('watermill_outbox.tx', true) WHEN 'open' THEN 1 ELSE 0 END) > 0`

	// NotMarked is the SQLSTATE of statements in a transaction without the mark.
	NotMarked = "2201G"

	// CheckTx fails without the mark.
	CheckTx = `SELECT ` + isMarked

	// InsertMarked is the InsertMessages of a marked transaction.
	InsertMarked = insertMessages + isUTF8 + ` AND ` + isMarked + allStored
)

// Notify notifies listeners that messages were committed.
//
// Arguments: channel, sender.
const Notify = `SELECT pg_notify($1, $2)`
