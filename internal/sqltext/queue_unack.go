package sqltext

const (
	// AckInTx does the same as AckMessages, and returns each message that it marked done, with a token for UnackMessage.
	//
	// Arguments: as for AckMessages.
	AckInTx = AckMessages + `
RETURNING ` + ackToken + `, q.source, q.message_id`

	// UnackMessage returns a done message to its owner. The handler ended the transaction itself, and with it the ack,
	// and the rest of that transaction was lost. If the message was made pending since and is done again, it has
	// another token.
	//
	// Arguments: source, message id, owner, lease in seconds, payload, metadata (JSON text), token.
	UnackMessage = `UPDATE {queue} q
   SET state = 'processing', done_at = NULL, due_at = clock_timestamp(), owner = $3::uuid,
       locked_until = clock_timestamp() + $4::float8 * interval '1 second', payload = $5::bytea, metadata = $6::jsonb
 WHERE q.source = $1 AND q.message_id = $2 AND q.state = 'done' AND ` + ackToken + ` = $7::bigint`

	ackToken = `(extract(epoch FROM q.done_at) * 1000000)::bigint`
)
