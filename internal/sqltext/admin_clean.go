package sqltext

// The statements of a dry run of admin.Clean count what it would delete.
//
// Arguments of all of them: retention in seconds, how many to count at most.
const (
	// CountOldOutbox counts among the oldest 100,000 rows.
	CountOldOutbox = `SELECT count(*) FROM (
    SELECT FROM (SELECT o.published_at FROM {outbox} o ORDER BY o.id LIMIT 100000) f
     WHERE f.published_at < statement_timestamp() - $1::float8 * interval '1 second' LIMIT $2::bigint) c`

	// CountOldInbox counts what was processed.
	CountOldInbox = `SELECT count(*) FROM (
    SELECT FROM {inbox} i WHERE i.processed_at < statement_timestamp() - $1::float8 * interval '1 second' LIMIT $2::bigint) c`

	// CountOldQueue counts what is done.
	CountOldQueue = `SELECT count(*) FROM (
    SELECT FROM {queue} q WHERE q.state = 'done' AND q.done_at < statement_timestamp() - $1::float8 * interval '1 second'
     ORDER BY q.done_at LIMIT $2::bigint) c`
)
