package sqltext

// The statements that settle what was published.
const (
	// SettlePublished marks messages published. A publish that happened is a fact, whichever forwarder reports it and
	// whatever became of the lane since, so no epoch is checked. But in another life an id may mean another message, after
	// a TRUNCATE ... RESTART IDENTITY, a crash, a restore: then the uuid must be the same as well. So it must when the
	// sequence was set back, which leaves its file as it is. To compare the uuids always costs 1.5 to 3 us of the server
	// for each message.
	//
	// What an operator had sent again since is another generation, for which no publish has happened yet. It has a due
	// time, so that the metadata of others is not looked at.
	//
	// Arguments: ids, rising; uuids with their generations, the life that all of them were read in as in Fetch's header
	// ('' = they differ, or it is over), and the sequence as of a read in that life.
	SettlePublished = `UPDATE {outbox} SET published_at = clock_timestamp(), dead_at = NULL
 WHERE ` + oneOf + ` AND published_at IS NULL` + sameMessage

	// SettlePublishedDelete is SettlePublished for an outbox that keeps nothing.
	//
	// Arguments: those of SettlePublished.
	SettlePublishedDelete = `DELETE FROM {outbox} WHERE ` + oneOf + sameMessage

	// oneOf finds rows by their ids. The ends say which partitions of an outbox in partitions have them, as an array does
	// only where the plan is made for it.
	oneOf = `id = ANY ($1::bigint[]) AND id BETWEEN ($1::bigint[])[1] AND ($1::bigint[])[cardinality($1::bigint[])]`

	// The comparison of lives is computed once, after the statement's snapshot: what it sees is of that life. The hash of
	// the last part is built only if it is needed.
	sameMessage = ` AND (` + firstGeneration + `
      OR ` + sameGeneration + `)`

	firstGeneration = `(due_at IS NULL OR coalesce(metadata->>'outbox_generation', '') = '') AND ` + sameLife

	sameGeneration = `(id, ` + generation + `) IN (SELECT * FROM unnest($1::bigint[], $2::text[]))`

	// generation is a uuid with its generation, for there is none but after an act of package admin.
	generation = `uuid || coalesce('/' || nullif(metadata->>'outbox_generation', ''), '')`

	sameLife = `{life} = $3::text AND (SELECT s.last_value FROM {outbox_id_seq} s) >= $4::bigint`

	// SettleSpan is SettlePublished for all ids from one to another, both included, but for some. It says nothing of
	// uuids: in another life it does nothing, and it passes by what has a generation. It walks the index once instead of
	// looking each id up, which costs half as much.
	//
	// Arguments: the lowest and the highest id; life and sequence as for SettlePublished; ids that are left out.
	SettleSpan = `UPDATE {outbox} SET published_at = clock_timestamp(), dead_at = NULL` + inSpan +
		` AND published_at IS NULL`

	// SettleSpanDelete is SettleSpan for an outbox that keeps nothing.
	//
	// Arguments: those of SettleSpan.
	SettleSpanDelete = `DELETE FROM {outbox}` + inSpan

	inSpan = `
 WHERE id BETWEEN $1::bigint AND $2::bigint AND id <> ALL ($5::bigint[]) AND ` + firstGeneration

	// SettleUnlocked is SettlePublished that passes by the messages that somebody else's transaction has locked, and
	// returns their ids.
	//
	// Arguments: ids, rising; uuids with their generations.
	SettleUnlocked = unlocked + `, settled AS (
    UPDATE {outbox} o SET published_at = clock_timestamp(), dead_at = NULL FROM free WHERE o.id = free.id
)` + stillLocked

	// SettleUnlockedDelete is SettleUnlocked for an outbox that keeps nothing.
	//
	// Arguments: those of SettleUnlocked.
	SettleUnlockedDelete = unlocked + `, settled AS (
    DELETE FROM {outbox} o USING free WHERE o.id = free.id
)` + stillLocked

	unlocked = `WITH free AS MATERIALIZED (
    SELECT id FROM {outbox}
     WHERE ` + oneOf + ` AND published_at IS NULL AND ` + sameGeneration + `
       FOR UPDATE SKIP LOCKED
)`
	stillLocked = `
SELECT id FROM {outbox}
 WHERE ` + oneOf + ` AND published_at IS NULL AND ` + sameGeneration + `
   AND id NOT IN (SELECT free.id FROM free)`
)
