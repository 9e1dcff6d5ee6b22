package sqltext

const (
	// OutboxProgress says where an id is among all, and when the message was written that has it, or the next one if it is
	// gone.
	//
	// Arguments: id.
	OutboxProgress = `SELECT coalesce((SELECT min(o.id) FROM {outbox} o), 0), coalesce((SELECT max(o.id) FROM {outbox} o), 0),
       (SELECT ` + createdAt + ` FROM {outbox} o WHERE o.id >= $1::bigint ORDER BY o.id LIMIT 1)`
)
