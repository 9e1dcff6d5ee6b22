package sqltext

const (
	// OutboxProgress returns the smallest and the largest id, and when the message with an id, or the next one if it was
	// deleted, was written.
	//
	// Arguments: id.
	OutboxProgress = `SELECT coalesce((SELECT min(o.id) FROM {outbox} o), 0), coalesce((SELECT max(o.id)
  FROM {outbox} o), 0),
       (SELECT ` + createdAt + ` FROM {outbox} o WHERE o.id >= $1::bigint ORDER BY o.id LIMIT 1)`
)
