package sqltext

// The statements with which package outboxtest reads written messages.
const (
	// LastMessage returns the highest id in the outbox.
	LastMessage = `SELECT coalesce(max(o.id), 0) FROM {outbox} o`

	// MessagesPast reads messages past an id, whatever their state.
	//
	// Arguments: id.
	MessagesPast = `SELECT o.uuid, o.topic, o.key, o.payload, o.metadata::text FROM {outbox} o WHERE o.id > $1::bigint ` +
		`ORDER BY o.id`
)
