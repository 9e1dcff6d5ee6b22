package sqltext

// The statements of the inbox: which messages each consumer has handled.
const (
	// ClaimInbox decides in one statement whether the caller must process a message, the first column: it is false if the
	// message was processed or is dead. If it is true, the other columns are the number of recorded failures, the seconds
	// since the first of them, and the token for UnclaimInbox. If it is false, the last column shows whether COMMIT may
	// wait for a standby: a processed message whose commit stopped waiting for the standby is visible here, and would be
	// lost with this server. A concurrent copy waits here for the first one's transaction. A success leaves attempts
	// unchanged. A row with false has failures -1 if the statement does not see the row of the message: another
	// transaction has just committed it, or a trigger kept ours from being stored. InboxKnown distinguishes them.
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

	// InboxHandled finds a message that was processed or is dead, without the lock that ClaimInbox takes. It finds none if
	// COMMIT may wait for a standby, because the row may be lost with this server.
	//
	// Arguments: consumer, message id.
	InboxHandled = `SELECT true FROM {inbox} WHERE consumer = $1 AND message_id = $2
   AND (processed_at IS NOT NULL OR dead_at IS NOT NULL) AND current_setting('synchronous_standby_names') = ''`

	// UnclaimInbox removes the mark of a handler that ended the transaction itself, so that its result was lost. If a
	// copy of the message was processed meanwhile, it has another token.
	//
	// Arguments: consumer, message id, token.
	UnclaimInbox = `UPDATE {inbox} SET processed_at = NULL
 WHERE consumer = $1 AND message_id = $2 AND (extract(epoch FROM processed_at) * 1000000)::bigint = $3::bigint`

	// InboxHash reads the content hash of a message that ClaimInbox found handled.
	//
	// Arguments: consumer, message id.
	InboxHash = `SELECT hash FROM {inbox} WHERE consumer = $1 AND message_id = $2`

	// FailInbox records a failed attempt, unless a copy of the message was processed meanwhile.
	//
	// Arguments: consumer, message id, error text.
	FailInbox = `INSERT INTO {inbox} AS i (consumer, message_id, received_at, attempts, last_error` + historyColumn + `)
VALUES ($1, $2, statement_timestamp(), 1, $3::text` + firstFailureHistory + `)
ON CONFLICT (consumer, message_id) DO UPDATE
   SET attempts = i.attempts + 1, last_error = excluded.last_error` + failureHistory + `
 WHERE i.processed_at IS NULL AND i.dead_at IS NULL`

	// InboxFailures returns the number of recorded failures of a message, the seconds since the first of them, and whether
	// the message, with this content if both are known, was processed or is dead. It returns no row if nothing is
	// recorded. The lock makes it wait for a copy that is being handled, and at commit for a synchronous standby: the
	// record that a message was processed must not be lost with this server.
	//
	// Arguments: consumer, message id, content hash (bytea, may be NULL).
	InboxFailures = `SELECT CASE WHEN processed_at IS NULL AND dead_at IS NULL THEN attempts ELSE 0 END,
       extract(epoch FROM clock_timestamp() - received_at)::float8,
       (processed_at IS NOT NULL OR dead_at IS NOT NULL) AND coalesce(hash = $3::bytea, true)
  FROM {inbox} WHERE consumer = $1 AND message_id = $2 FOR UPDATE`

	// MarkInboxDead marks a message dead and returns the number of times it was revived. If it was processed meanwhile or
	// is already dead, it returns no row.
	//
	// Arguments: consumer, message id, error text.
	MarkInboxDead = `INSERT INTO {inbox} AS i (consumer, message_id, received_at, attempts, last_error,
  dead_at` + historyColumn + `)
VALUES ($1, $2, statement_timestamp(), 1, $3::text, clock_timestamp()` + firstFailureHistory + `)
ON CONFLICT (consumer, message_id) DO UPDATE
   SET attempts = i.attempts + 1, last_error = excluded.last_error, dead_at = excluded.dead_at` + failureHistory + `
 WHERE i.processed_at IS NULL AND i.dead_at IS NULL
RETURNING i.revived`

	// CleanInbox deletes one batch of rows that were processed longer ago than the retention. Dead rows stay. A
	// volatile time such as clock_timestamp() could not use an index.
	//
	// Arguments: retention in seconds, batch size, time from which the retention counts back (RFC 3339 text, empty =
	// now).
	CleanInbox = `DELETE FROM {inbox} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {inbox}
     WHERE processed_at < coalesce(nullif($3::text, '')::timestamptz,
       statement_timestamp()) - $1::float8 * interval '1 second'
     ORDER BY processed_at LIMIT $2::int FOR UPDATE SKIP LOCKED))`

	// CleanInboxFailed deletes rows of messages that last failed longer ago than that, were never processed and are not
	// dead. Such a row does not prevent a repetition: if its message is redelivered, its failures are counted from zero.
	//
	// Arguments: as for CleanInbox.
	CleanInboxFailed = `DELETE FROM {inbox} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {inbox}
     WHERE received_at < coalesce(nullif($3::text, '')::timestamptz,
       statement_timestamp()) - $1::float8 * interval '1 second'
       AND ` + lastInboxEvent + ` < coalesce(nullif($3::text, '')::timestamptz,
       statement_timestamp()) - $1::float8 * interval '1 second'
       AND processed_at IS NULL AND dead_at IS NULL
     ORDER BY received_at LIMIT $2::int FOR UPDATE SKIP LOCKED))`
)
