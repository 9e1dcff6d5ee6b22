package sqltext

// The history of a message of the inbox is in its row too, written by the statements that record a failed attempt, mark
// a message dead or perform an operator's act. A message handled at the first attempt has none.
const (
	// InboxActHistory is the part of the acts on the inbox that records them, with the times of the first delivery and of
	// the death, which requeueing a message clears.
	InboxActHistory = beginInboxActHistory + `$4::bigint), '[]')`

	// The parts of FailInbox and MarkInboxDead that record the attempt: a column, its value in a new row, and its value in
	// an existing row.
	historyColumn       = `, history`
	firstFailureHistory = `,
        jsonb_build_array(jsonb_build_object('at', statement_timestamp(), 'attempt', 1, 'error', left($3::text, 256)))`
	failureHistory = `,
       history = ` + keptInboxHistory + ` || jsonb_build_array(jsonb_build_object('at', statement_timestamp(),
         'attempt', i.attempts + 1, 'error', left($3::text, 256)))`

	beginInboxActHistory = `,
       history = ` + keptInboxHistory + ` || coalesce((
         SELECT jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('at', statement_timestamp(), 'act', a.action,
                  'audit', a.id, 'received', i.received_at, 'died', CASE WHEN i.processed_at IS NULL
                    THEN i.dead_at END)))
           FROM {audit} a WHERE a.id = `

	// lastInboxEvent is when a message last failed, or an operator changed it.
	lastInboxEvent = `coalesce((history -> -1 ->> 'at')::timestamptz, received_at)`

	keptInboxHistory = `jsonb_path_query_array(coalesce(i.history, '[]'), '$[last - 18 to last]')`
)
