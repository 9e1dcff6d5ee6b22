package sqltext

// The statements by which package outboxtest sees what was written.
const (
	// LastMessage is the highest id in the outbox.
	LastMessage = `SELECT coalesce(max(o.id), 0) FROM {outbox} o`

	// MessagesPast reads what was written past an id, whatever became of it.
	//
	// Arguments: id.
	MessagesPast = `SELECT o.uuid, o.topic, o.key, o.payload, o.metadata::text FROM {outbox} o WHERE o.id > $1::bigint ` +
		`ORDER BY o.id`
)
