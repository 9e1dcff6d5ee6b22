package sqltext

// Outbox has indexes by lane on ready and waiting rows, and by topic on dead and failing rows.
var Outbox = newStore(columns{
	table: "{outbox} o", named: "o.id = w.name::bigint", owner: "''::text", name: "o.id::text", id: "o.id",
	version: "0::bigint", uuid: "o.uuid",
	topic: "o.topic", key: "o.key", about: "o.topic", state: OutboxState, attempts: "o.attempts", crashes: "0",
	created: created("o.created_at"), due: readableOf("o.due_at"), dead: readableOf("o.dead_at"), died: "o.dead_at",
	pastDead: "(o.topic, o.id) > ($3::text, $6::bigint)",
	settled:  readableOf("o.published_at"), error: "o.last_error", metadata: "o.metadata::text", payload: "o.payload",
	match: "(o.uuid = $17::text OR o.key = $17::text OR o.metadata->>'uuid_poisoned' = $17::text)", history: ActHistory,
	drawn: drawn,
	all: "o.id, o.uuid, o.topic, o.key, o.attempts, o.last_error, o.metadata, o.created_at, o.due_at, o.dead_at, " +
		"o.published_at",
	scans: map[string]scan{
		"ready": {
			parts: lanePart, index: "o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL",
			after: "(o.lane, o.id) > (p.part::smallint, $14::bigint) AND (o.lane, o.id) <= (p.part::smallint, $10::bigint)",
			order: "o.lane, o.id", merge: "@id",
		},
		"delayed":     byDue(">"),
		"due":         byDue("<="),
		"failing":     byTopic(isFailing, oldest),
		"dead":        byTopic(isDead, oldest),
		"newest dead": byTopic(isDead, newest),
		"rows":        {onePart, "true", "o.id > $14::bigint AND o.id <= $10::bigint", "o.id", "", "@n"},
		"newest rows": {onePart, "true", "o.id < $14::bigint", "o.id DESC", "", "@n"},
		"ids":         {onePart, named, "o.id > $14::bigint", "o.id", "", "@n"},
	},
	groups: map[string]scan{"dead": byTopic(isDead, newest), "failing": byTopic(isFailing, newest)},
	acts: map[string]string{
		"discard":   discarded + `, last_error = left(concat_ws('; before: ', $5::text, o.last_error), 1024)`,
		"skip":      discarded + `, last_error = left(concat_ws('; before: ', $5::text, o.last_error), 1024)`,
		"retry_now": `due_at = least(o.due_at, statement_timestamp())`,
	},
})

type direction struct{ after, order, merge string }

var (
	oldest = direction{`(o.topic, o.id) > (p.part, $14::bigint) AND (o.topic, o.id) <= (p.part, $10::bigint)`,
		`o.topic, o.id`, `@id`}
	newest = direction{`o.topic >= p.part AND (o.topic, o.id) < (p.part, $14::bigint)`, `o.topic DESC, o.id DESC`, `-@id`}
)

func byTopic(index string, d direction) scan {
	return scan{partsOf("{outbox} o", "o.topic", "$1", index), index, d.after, d.order, "", d.merge}
}

func byDue(is string) scan {
	return scan{
		parts: lanePart,
		index: "o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NOT NULL AND o.due_at " + is +
			" statement_timestamp()",
		after: "(o.lane, o.due_at, o.id) > (p.part::smallint, $12::timestamptz, $14::bigint) AND o.lane <= p.part::smallint",
		order: "o.lane, o.due_at, o.id", at: "o.due_at", merge: "@at, @id",
	}
}

// Inbox finds its rows by consumer, and dead or unhandled ones by consumer and time.
var Inbox = newStore(columns{
	table: "{inbox} i", named: "i.consumer = w.owner AND i.message_id = w.name", owner: "i.consumer", name: "i.message_id",
	id: "0::bigint", version: "0::bigint", uuid: "i.message_id", topic: "''::text", key: "''::text", about: "i.consumer",
	state:    InboxState,
	attempts: "i.attempts", crashes: "0", created: created("i.received_at"), due: "NULL::timestamptz",
	dead: readableOf("i.dead_at"), died: "i.dead_at",
	pastDead: "(i.consumer, i.received_at, i.message_id) > ($3::text, $4::timestamptz, $5::text)",
	settled:  readableOf("i.processed_at"), error: "i.last_error",
	metadata: "'{}'::text",
	payload:  "NULL::bytea", match: "true", history: InboxActHistory,
	all: "i.consumer, i.message_id, i.received_at, i.processed_at, i.dead_at, i.attempts, i.last_error",
	scans: map[string]scan{
		"dead": consumersIn(inboxDead), "failing": consumersIn(inboxFailing), "ready": consumersIn(inboxFailing),
		"rows": {onePart, "($3::text = '' OR i.consumer = $3::text)", "(i.consumer, i.message_id) > ($11::text, $13::text)",
			"i.consumer, i.message_id", "", "@n"},
		"ids": {onePart, named, "(i.consumer, i.message_id) > ($11::text, $13::text)", "i.consumer, i.message_id", "", "@n"},
		"find": {partsOf("{inbox} i", "i.consumer", "$3", "true"), "i.consumer = p.part AND i.consumer > $11::text",
			"i.message_id = $17::text",
			"i.consumer", "", "@owner"},
	},
	groups: map[string]scan{"dead": ofConsumer(inboxDead), "failing": ofConsumer(inboxFailing)},
	acts: map[string]string{
		"requeue": revived,
		"discard": `processed_at = clock_timestamp(), dead_at = coalesce(i.dead_at, clock_timestamp()),
           last_error = left(concat_ws('; before: ', $5::text, i.last_error), 1024)`,
	},
})

func consumersIn(index string) scan {
	return scan{onePart, index + " AND ($3::text = '' OR i.consumer = $3::text)",
		"(i.consumer, i.received_at, i.message_id) > ($11::text, $12::timestamptz, $13::text)",
		"i.consumer, i.received_at, i.message_id", "i.received_at", "@n"}
}

func ofConsumer(index string) scan {
	return scan{partsOf("{inbox} i", "i.consumer", "$3", index), index, "i.consumer = p.part",
		"i.consumer DESC, i.received_at DESC, i.message_id DESC", "", "@n"}
}

// Queue has neither lanes nor an index by topic: its rows are found as claims find them. Messages being processed, and
// messages without a topic, are not changed.
var Queue = newStore(columns{
	table: "{queue} q", named: "q.source = w.owner AND q.message_id = w.name", owner: "q.source", name: "q.message_id",
	id: "q.id", version: "hashtextextended(q.id || ' ' || extract(epoch FROM q.last_seen_at), 0)", uuid: "q.message_id",
	topic: "q.topic", key: "q.key", about: "q.topic", state: QueueState,
	attempts: "q.attempts", crashes: "q.crashes::int", created: created("q.first_seen_at"), due: readableOf("q.due_at"),
	dead: "NULL::timestamptz", died: "(q.history -> -1 ->> 'died')::timestamptz",
	pastDead: "q.id > $6::bigint", settled: readableOf("q.done_at"),
	error: "q.last_error", metadata: "q.metadata::text",
	payload: "q.payload", match: "true", free: " AND q.owner IS NULL AND q.topic <> ''", history: QueueActHistory,
	all: "q.id, q.source, q.message_id, q.topic, q.key, q.state, q.attempts, q.last_error, q.first_seen_at, q.due_at, " +
		"q.last_seen_at",
	scans: map[string]scan{
		"ready":   {onePart, "q.state = 'processing' AND q.due_at IS NULL", "q.id > $14::bigint", "q.id", "", "@n"},
		"delayed": waiting, "due": waiting, "failing": waiting,
		"dead":        {onePart, "q.state = 'dead'", "q.id > $14::bigint", "q.id", "", "@n"},
		"newest dead": {onePart, "q.state = 'dead'", "q.id < $14::bigint", "q.id DESC", "", "@n"},
		"rows": {onePart, "true", "(q.source, q.message_id) > ($11::text, $13::text)", "q.source, q.message_id", "",
			"@n"},
		"ids": {onePart, named, "q.id > $14::bigint", "q.id", "", "@n"},
		"find": {partsOf("{queue} q", "q.source", "$3", "true"), "q.source = p.part AND q.source > $11::text",
			"q.message_id = $17::text", "q.source",
			"", "@owner"},
	},
	groups: map[string]scan{
		"dead":    {onePart, "q.state = 'dead'", "true", "q.id DESC", "", "@n"},
		"failing": {onePart, waiting.index, "true", waiting.order, "", "@n"},
	},
	acts: map[string]string{
		"requeue": `state = 'processing', due_at = statement_timestamp(), attempts = 0, crashes = 0, done_at = NULL,
         expires_at = NULL`,
		"discard": `state = 'done', done_at = clock_timestamp(),
         last_error = left(concat_ws('; before: ', $5::text, q.last_error), 1024)`,
		"retry_now": `due_at = least(q.due_at, statement_timestamp())`,
	},
})

var waiting = scan{onePart, "q.state = 'processing' AND q.due_at IS NOT NULL",
	"(q.due_at, q.id) > ($12::timestamptz, $14::bigint)", "q.due_at, q.id", "q.due_at", "@n"}

// created is a time that every client can read; readableOf leaves out times that no client can read.
func created(column string) string {
	return "least(greatest(" + column + ", timestamptz '1970-01-02 00:00Z'), timestamptz '9999-12-30 00:00Z')"
}

func readableOf(column string) string {
	return "CASE WHEN " + column + " BETWEEN " + readable + " THEN " + column + " END"
}

// Requeue makes messages of the outbox pending again. It sets due_at and attempts, so that such a row leaves the part
// of the index that is read past a cursor, and blocks its key until it is sent; without an error, the attempt is not
// counted, see untried. A batch has a single due time, so that the messages of a key are sent in id order. Locked rows
// are skipped, and with them later rows of their keys, here and in the following batches. Their keys are returned as
// JSON.
//
// Arguments: as for acts, with keys to skip instead of an error.
const Requeue = `WITH args AS (SELECT $1::text[]), meant AS MATERIALIZED (
    SELECT o.id, o.key FROM {outbox} o
     WHERE o.id = ANY ($2::text[]::bigint[]) AND ` + OutboxState + ` = ANY ($3::text[]) AND o.key <> ALL ($5::text[])
), locked AS MATERIALIZED (
    SELECT o.id, o.key FROM {outbox} o
     WHERE o.id = ANY ($2::text[]::bigint[]) AND ` + OutboxState + ` = ANY ($3::text[]) AND o.key <> ALL ($5::text[])
     ORDER BY o.id FOR UPDATE OF o SKIP LOCKED
), blocked AS MATERIALIZED (
    SELECT m.key, min(m.id) AS id FROM meant m WHERE m.key <> '' AND m.id NOT IN (SELECT l.id FROM locked l)
     GROUP BY m.key
), changed AS (
    UPDATE {outbox} o SET ` + requeued + ActHistory + `
      FROM locked l WHERE o.id = l.id AND NOT EXISTS (SELECT FROM blocked b WHERE b.key = l.key AND b.id < l.id)
    RETURNING 1` + acted + `, (SELECT coalesce(json_agg(b.key), '[]')::text FROM blocked b), ` + drawn + ` FROM changed`
