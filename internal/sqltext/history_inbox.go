package sqltext

// The history of a message of the inbox stands in its row too: the statements that record a failed attempt, mark a
// message dead or do an act of an operator write it. What is handled at first writes none.
const (
	// NoteInboxAct is the part of the acts on the inbox that notes them, with when the message came first and when it
	// died, which an act that revives it forgets.
	NoteInboxAct = noteInboxAct + `$4::bigint), '[]')`

	// The parts of FailInbox and BuryInbox that note the attempt: a column, the value of it in a new row, and in one that
	// is there.
	noteColumn       = `, history`
	noteFirstFailure = `,
        jsonb_build_array(jsonb_build_object('at', statement_timestamp(), 'attempt', 1, 'error', left($3::text, 256)))`
	noteFailure = `,
       history = ` + lastInboxNotes + ` || jsonb_build_array(jsonb_build_object('at', statement_timestamp(),
         'attempt', i.attempts + 1, 'error', left($3::text, 256)))`

	noteInboxAct = `,
       history = ` + lastInboxNotes + ` || coalesce((
         SELECT jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('at', statement_timestamp(), 'act', a.action,
                  'audit', a.id, 'received', i.received_at, 'died', CASE WHEN i.processed_at IS NULL THEN i.dead_at END)))
           FROM {audit} a WHERE a.id = `

	lastInboxNotes = `jsonb_path_query_array(coalesce(i.history, '[]'), '$[last - 18 to last]')`
)
