package sqltext

// The statements of a dry run of admin.Clean count the rows to delete, and report whether more may be left.
//
// Arguments of all but the last: retention in seconds, largest count, time from which the retention counts back (RFC
// 3339 text).
const (
	// CountOldOutbox counts among the oldest 100,000 rows.
	CountOldOutbox = `SELECT count(*), count(*) >= $2::bigint
       OR EXISTS (SELECT FROM {outbox} o ORDER BY o.id OFFSET 100000) FROM (
    SELECT FROM (SELECT o.published_at FROM {outbox} o ORDER BY o.id LIMIT 100000) f
     WHERE f.published_at < $3::text::timestamptz - $1::float8 * interval '1 second' LIMIT $2::bigint) c`

	// CountOldInbox counts the rows that CleanInbox and CleanInboxFailed delete.
	CountOldInbox = `SELECT count(*), count(*) >= $2::bigint FROM (
    (SELECT 1 FROM {inbox} i WHERE i.processed_at < $3::text::timestamptz - $1::float8 * interval '1 second'
      ORDER BY i.processed_at LIMIT $2::bigint)
    UNION ALL
    (SELECT 1 FROM {inbox} i WHERE i.received_at < $3::text::timestamptz - $1::float8 * interval '1 second'
        AND ` + lastInboxEvent + ` < $3::text::timestamptz - $1::float8 * interval '1 second'
        AND i.processed_at IS NULL AND i.dead_at IS NULL
      ORDER BY i.received_at LIMIT $2::bigint)
     LIMIT $2::bigint) c`

	// CountOldQueue counts the rows that CleanQueue deletes.
	CountOldQueue = `SELECT count(*), count(*) >= $2::bigint FROM (
    (SELECT 1 FROM {queue} q WHERE q.state = 'done'
        AND q.done_at < $3::text::timestamptz - $1::float8 * interval '1 second' ORDER BY q.done_at LIMIT $2::bigint)
    UNION ALL
    (SELECT 1 FROM {queue} q WHERE q.state = 'seen'
        AND q.last_seen_at < $3::text::timestamptz - $1::float8 * interval '1 second'
      ORDER BY q.last_seen_at LIMIT $2::bigint)
     LIMIT $2::bigint) c`

	// CountExpiredKeys counts the rows that CleanKeys deletes.
	//
	// Arguments: largest count, expiry time before which to count (RFC 3339 text).
	CountExpiredKeys = `SELECT count(*), count(*) >= $1::bigint FROM (
    SELECT FROM {idempotency} i WHERE i.expires_at <= $2::text::timestamptz
     ORDER BY i.expires_at LIMIT $1::bigint) c`
)
