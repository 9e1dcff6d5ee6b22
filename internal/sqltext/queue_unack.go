package sqltext

const (
	// AckMessage is AckMessages that returns a note for UnackMessage of each message that it marks done.
	//
	// Arguments: those of AckMessages.
	AckMessage = AckMessages + `
RETURNING ` + ackNote

	// AckBatch is AckMessage for many messages. It also returns their ids.
	AckBatch = AckMessage + `, q.source, q.message_id`

	// UnackMessage makes a message that is done its owner's again. Its handler ended the transaction by itself, the ack
	// with it, and what else belonged to that transaction was lost. If it was made pending since, and is done once more,
	// it has another note.
	//
	// Arguments: source, message id, owner, lease in seconds, payload, metadata (JSON text), note.
	UnackMessage = `UPDATE {queue} q
   SET state = 'processing', done_at = NULL, due_at = clock_timestamp(), owner = $3::uuid,
       locked_until = clock_timestamp() + $4::float8 * interval '1 second', payload = $5::bytea, metadata = $6::jsonb
 WHERE q.source = $1 AND q.message_id = $2 AND q.state = 'done' AND ` + ackNote + ` = $7::bigint`

	ackNote = `(extract(epoch FROM q.done_at) * 1000000)::bigint`
)
