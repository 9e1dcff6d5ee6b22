package sqltext

// UnackMessage makes a message that is done its owner's again. Its handler ended the transaction by itself, the ack with it,
// and what else belonged to that transaction was lost. While it was done nobody else can have handled it.
//
// Arguments: source, message id, owner, lease in seconds, payload, metadata (JSON text).
const UnackMessage = `UPDATE {queue} q
   SET state = 'processing', done_at = NULL, due_at = clock_timestamp(), owner = $3::uuid,
       locked_until = clock_timestamp() + $4::float8 * interval '1 second', payload = $5::bytea, metadata = $6::jsonb
 WHERE q.source = $1 AND q.message_id = $2 AND q.state = 'done'`
