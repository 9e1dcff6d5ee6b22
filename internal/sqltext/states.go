package sqltext

const (
	// WalkIndexes makes the statements of a transaction use indexes. For a table without current statistics the planner
	// may underestimate the rows of a topic, and sort them; and compiling a statement takes longer than running it. A
	// generic plan, which a connection makes after a few runs, would search for one topic through those before it.
	WalkIndexes = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true),
       set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_custom_plan', true)`

	// OutboxState is the state of a row of the outbox. A discarded row has both times.
	OutboxState = `CASE WHEN o.published_at IS NOT NULL THEN CASE WHEN o.dead_at IS NULL THEN 'done' ELSE 'discarded' END
                WHEN o.dead_at IS NOT NULL THEN 'dead' ELSE ` + pendingState + ` END`

	// A delayed message that is due is ready. So is a message that an operator requeued, see untried.
	pendingState = `CASE WHEN ` + failed + ` THEN 'failing' WHEN o.due_at > statement_timestamp() THEN 'delayed' ` +
		`ELSE 'ready' END`
	failed = `(o.attempts > 0 AND o.last_error IS NOT NULL)`

	// Requeue sets attempts to 1, so that the message blocks its key. This is not a failed attempt.
	untried = `o.attempts = 1 AND o.last_error IS NULL AS untried`

	// These are the conditions of the indexes by topic.
	isDead    = `o.dead_at >= '-infinity' AND o.published_at IS NULL`
	isFailing = `o.attempts >= 1 AND o.published_at IS NULL AND o.dead_at IS NULL`
	// The latter includes retries, of which a step reads only a bounded number.
	wentWrong = `(o.dead_at IS NOT NULL OR o.last_error IS NOT NULL)`

	// InboxState is the state of a row of the inbox. A discarded row has both times. A requeued row has had no failed
	// attempt since: its message can be handled when it is delivered.
	InboxState = `CASE WHEN i.processed_at IS NOT NULL THEN CASE WHEN i.dead_at IS NULL THEN 'done' ELSE 'discarded' END
                WHEN i.dead_at IS NOT NULL THEN 'dead' WHEN i.attempts = 0 THEN 'ready' ELSE 'failing' END`

	inboxDead    = `i.dead_at IS NOT NULL AND i.processed_at IS NULL`
	inboxFailing = `i.processed_at IS NULL AND i.dead_at IS NULL`
	receivedAt   = `least(greatest(i.received_at, timestamptz '1970-01-02 00:00Z'), timestamptz '9999-12-30 00:00Z') ` +
		`AS received_at`

	// QueueState is the state of a row of the queue. Rows being processed count under their previous state.
	QueueState = `CASE q.state WHEN 'processing' THEN ` + dueState + ` ELSE q.state END`

	// dueState is the state of an unfinished row. A delayed message that is due is ready.
	dueState = `CASE WHEN q.attempts > 0 THEN 'failing'
  WHEN q.due_at > statement_timestamp() AND NOT ` + unhandled + ` THEN 'delayed' ELSE 'ready' END`
	// queueSince is the time since which a message has been waiting; NULL for one with an owner.
	queueSince = `CASE WHEN q.owner IS NULL THEN least(greatest(
  CASE WHEN q.attempts = 0 AND q.state = 'processing' AND q.due_at <= statement_timestamp() AND isfinite(q.due_at)
    AND NOT ` + unhandled + `
  THEN q.due_at ELSE q.first_seen_at END, timestamptz '1970-01-02 00:00Z'), timestamptz '9999-12-30 00:00Z')
  END AS since`

	lastSeenAt = `least(greatest(q.last_seen_at, timestamptz '1970-01-02 00:00Z'), timestamptz '9999-12-30 00:00Z') ` +
		`AS last_seen_at`
	firstSeenAt = `least(greatest(q.first_seen_at, timestamptz '1970-01-02 00:00Z'), timestamptz '9999-12-30 00:00Z') ` +
		`AS first_seen_at`
)
