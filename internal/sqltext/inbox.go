package sqltext

// The statements of the inbox: which messages were handled, by which consumer.
const (
	// ClaimInbox decides in one statement whether the message is ours to process, which is its first column: it is not if
	// it was processed or is dead. If it is, the others are how many failures were recorded, how many seconds ago the
	// first of them, and the note for UnclaimInbox. If not, the last says whether COMMIT may wait for a standby: then what
	// was processed may be visible before the standby has it, where the wait was cut short, and be lost with this server.
	// A concurrent copy waits here for the first one's transaction. A success leaves attempts as it is. A row that says no
	// has failures -1 if the statement does not see the row of the message: another transaction has just committed it, or
	// a trigger kept ours from being stored. InboxKnown tells them apart.
	//
	// Arguments: consumer, message id, content hash (bytea, may be NULL).
	ClaimInbox = `WITH claimed AS (
INSERT INTO {inbox} AS i (consumer, message_id, processed_at, hash)
VALUES ($1, $2, clock_timestamp(), $3::bytea)
ON CONFLICT (consumer, message_id) DO UPDATE
   SET processed_at = excluded.processed_at, hash = coalesce(excluded.hash, i.hash)
 WHERE i.processed_at IS NULL AND i.dead_at IS NULL
RETURNING true, i.attempts, extract(epoch FROM i.processed_at - i.received_at)::float8,
          (extract(epoch FROM i.processed_at) * 1000000)::bigint, false)
TABLE claimed UNION ALL
SELECT false, CASE WHEN EXISTS (SELECT FROM {inbox} WHERE consumer = $1 AND message_id = $2) THEN 0 ELSE -1 END, 0, 0,
       current_setting('synchronous_standby_names') <> '' WHERE NOT EXISTS (TABLE claimed)`

	// InboxKnown finds the row of a message.
	//
	// Arguments: consumer, message id.
	InboxKnown = `SELECT true FROM {inbox} WHERE consumer = $1 AND message_id = $2`

	// InboxHandled finds a message that was processed or is dead, and locks nothing: what ClaimInbox finds out with a
	// transaction. It finds none where COMMIT may wait for a standby, since what it saw may be lost with this server.
	//
	// Arguments: consumer, message id.
	InboxHandled = `SELECT true FROM {inbox} WHERE consumer = $1 AND message_id = $2
   AND (processed_at IS NOT NULL OR dead_at IS NOT NULL) AND current_setting('synchronous_standby_names') = ''`

	// UnclaimInbox takes a note back that a handler committed when it ended the transaction by itself, and what it
	// returned was lost. A copy of the message that was processed meanwhile has another note.
	//
	// Arguments: consumer, message id, note.
	UnclaimInbox = `UPDATE {inbox} SET processed_at = NULL
 WHERE consumer = $1 AND message_id = $2 AND (extract(epoch FROM processed_at) * 1000000)::bigint = $3::bigint`

	// InboxHash reads the content hash of a message that ClaimInbox found handled.
	//
	// Arguments: consumer, message id.
	InboxHash = `SELECT hash FROM {inbox} WHERE consumer = $1 AND message_id = $2`

	// FailInbox records a failed attempt, unless a copy of the message was processed meanwhile.
	//
	// Arguments: consumer, message id, error text.
	FailInbox = `INSERT INTO {inbox} AS i (consumer, message_id, received_at, attempts, last_error` + noteColumn + `)
VALUES ($1, $2, statement_timestamp(), 1, $3::text` + noteFirstFailure + `)
ON CONFLICT (consumer, message_id) DO UPDATE
   SET attempts = i.attempts + 1, last_error = excluded.last_error` + noteFailure + `
 WHERE i.processed_at IS NULL AND i.dead_at IS NULL`

	// InboxFailures reads how many failures of a message are recorded, how many seconds ago the first of them, and
	// whether the message, with this content if both are known, was processed or is dead. There is no row if nothing
	// is recorded. The lock makes it wait for a copy that is being handled, and its commit for a synchronous standby:
	// what says that a message was processed must not be lost with this server.
	//
	// Arguments: consumer, message id, content hash (bytea, may be NULL).
	InboxFailures = `SELECT CASE WHEN processed_at IS NULL AND dead_at IS NULL THEN attempts ELSE 0 END,
       extract(epoch FROM clock_timestamp() - received_at)::float8,
       (processed_at IS NOT NULL OR dead_at IS NOT NULL) AND coalesce(hash = $3::bytea, true)
  FROM {inbox} WHERE consumer = $1 AND message_id = $2 FOR UPDATE`

	// BuryInbox marks a message dead and returns how often it was revived before. If it was processed meanwhile or is dead
	// already no row comes back.
	//
	// Arguments: consumer, message id, error text.
	BuryInbox = `INSERT INTO {inbox} AS i (consumer, message_id, received_at, attempts, last_error, dead_at` + noteColumn + `)
VALUES ($1, $2, statement_timestamp(), 1, $3::text, clock_timestamp()` + noteFirstFailure + `)
ON CONFLICT (consumer, message_id) DO UPDATE
   SET attempts = i.attempts + 1, last_error = excluded.last_error, dead_at = excluded.dead_at` + noteFailure + `
 WHERE i.processed_at IS NULL AND i.dead_at IS NULL
RETURNING i.revived`

	// CleanInbox deletes one batch of rows that were processed longer ago than the retention. Dead rows stay. A volatile
	// time, as clock_timestamp() is, would be no condition for an index.
	//
	// Arguments: retention in seconds, batch size, from when the retention is counted back (RFC 3339 text, empty = now).
	CleanInbox = `DELETE FROM {inbox} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {inbox}
     WHERE processed_at < coalesce(nullif($3::text, '')::timestamptz,
       statement_timestamp()) - $1::float8 * interval '1 second'
     LIMIT $2::int FOR UPDATE SKIP LOCKED))`

	// CleanInboxFailed does the same to rows of messages that failed first longer ago than that, were never processed and
	// are not dead. Such a row guards nothing: if its message comes again, its failures are counted anew.
	//
	// Arguments: those of CleanInbox.
	CleanInboxFailed = `DELETE FROM {inbox} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {inbox}
     WHERE received_at < coalesce(nullif($3::text, '')::timestamptz,
       statement_timestamp()) - $1::float8 * interval '1 second'
       AND processed_at IS NULL AND dead_at IS NULL
     LIMIT $2::int FOR UPDATE SKIP LOCKED))`
)
