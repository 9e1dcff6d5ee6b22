package sqltext

// The history of a message of the queue is in its row too, like that of the outbox, written by the statements that
// charge an attempt, mark a message dead or perform an operator's act. Messages done at the first attempt, and
// releases without charge, write none.
const (
	// NoteAbandoned is the part of AbandonMessages that records the attempt, and the death if it was the last.
	NoteAbandoned = noteQueue + `'attempt', ` + oneMore + `, 'error', left($4::text, 256),
           'delay', ($5::float8[])[least(` + oneMore + `, cardinality($5::float8[]))],
           'died', CASE WHEN ` + oneMore + ` >= $6::int THEN statement_timestamp() END` + noted

	// NoteFailed does this for FailMessages. Without a charge there was no attempt.
	NoteFailed = noteQueue + `'error', left($4::text, 256), 'died', statement_timestamp(),
           'attempt', CASE WHEN $5::int > 0 THEN least(q.attempts::bigint + $5::int, 2147483647) END` + noted

	// NoteReaped does this for ReapLeases.
	NoteReaped = noteQueue + `'attempt', ` + oneMore + `, 'error', 'lease expired',
           'delay', ($2::float8[])[least(` + oneMore + `, cardinality($2::float8[]))],
           'died', CASE WHEN ` + oneMore + ` >= $3::int THEN statement_timestamp() END` + noted

	// NoteExpired does this for ExpireMessages, and NoteDead for MarkDead.
	NoteExpired = noteQueue + `'error', 'expired', 'died', statement_timestamp()` + noted
	NoteDead    = noteQueue + `'error', left($3::text, 256), 'died', statement_timestamp()` + noted

	// NoteQueueAct does this for the acts on the queue.
	NoteQueueAct = noteQueue + `'audit', $4::bigint,
           'act', (SELECT a.action FROM {audit} a WHERE a.id = $4::bigint)` + noted

	noteQueue = `,
       history = jsonb_path_query_array(coalesce(q.history, '[]'), '$[last - 18 to last]')
         || jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('at', statement_timestamp(), `
	noted = `)))`
)
