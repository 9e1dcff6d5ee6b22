package sqltext

// The history of a message of the queue is in its row too, like that of the outbox, written by the statements that
// charge an attempt, mark a message dead or perform an operator's act. Messages done at the first attempt, and
// releases without charge, write none.
const (
	// QueueActHistory is the part of the acts on the queue that records them.
	QueueActHistory = queueHistory + `'audit', $4::bigint,
           'act', (SELECT a.action FROM {audit} a WHERE a.id = $4::bigint)` + queueHistoryEnd

	// queueHistory and queueHistoryEnd begin and end the assignment of a new history; the fields of its last entry come
	// between them.
	queueHistory = `,
       history = jsonb_path_query_array(coalesce(q.history, '[]'), '$[last - 18 to last]')
         || jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('at', statement_timestamp(), `
	queueHistoryEnd = `)))`
)
