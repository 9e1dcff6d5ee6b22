package sqltext

// The history of a message of the queue stands in its row too, as that of the outbox does: the statements that charge
// an attempt, mark a message dead or do an act of an operator write it. What is done at first, and what is given back
// without charge, writes none.
const (
	// NoteAbandoned is the part of AbandonMessages that notes the attempt, and the death where it was the last.
	NoteAbandoned = noteQueue + `'attempt', ` + oneMore + `, 'error', left($4::text, 256),
           'delay', ($5::float8[])[least(` + oneMore + `, cardinality($5::float8[]))],
           'died', CASE WHEN ` + oneMore + ` >= $6::int THEN statement_timestamp() END` + noted

	// NoteFailed is that of FailMessages. Without a charge it was no attempt.
	NoteFailed = noteQueue + `'error', left($4::text, 256), 'died', statement_timestamp(),
           'attempt', CASE WHEN $5::int > 0 THEN least(q.attempts::bigint + $5::int, 2147483647) END` + noted

	// NoteReaped is that of ReapLeases.
	NoteReaped = noteQueue + `'attempt', ` + oneMore + `, 'error', 'lease expired',
           'delay', ($2::float8[])[least(` + oneMore + `, cardinality($2::float8[]))],
           'died', CASE WHEN ` + oneMore + ` >= $3::int THEN statement_timestamp() END` + noted

	// NoteExpired is that of ExpireMessages, and NoteDead that of MarkDead.
	NoteExpired = noteQueue + `'error', 'expired', 'died', statement_timestamp()` + noted
	NoteDead    = noteQueue + `'error', left($3::text, 256), 'died', statement_timestamp()` + noted

	// NoteQueueAct is that of the acts on the queue.
	NoteQueueAct = noteQueue + `'audit', $4::bigint,
           'act', (SELECT a.action FROM {audit} a WHERE a.id = $4::bigint)` + noted

	noteQueue = `,
       history = jsonb_path_query_array(coalesce(q.history, '[]'), '$[last - 18 to last]')
         || jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('at', statement_timestamp(), `
	noted = `)))`
)
