package sqltext

// The statements that settle published messages.
const (
	// SettlePublished marks messages published. A publish is a fact, whichever forwarder reports it and whoever owns the
	// lane now, so it does not check epochs. But in another incarnation of the server an id may mean another message,
	// after a TRUNCATE ... RESTART IDENTITY, a crash or a restore: then the uuid must match as well. It must also match
	// after the sequence was set back, which keeps its file. Always comparing uuids would cost the server 1.5 to 3 us per
	// message.
	//
	// A message that an operator has requeued since is another generation, which has not been published yet. It has a due
	// time, so only the metadata of rows with a due time must be read.
	//
	// Arguments: ids, ascending; uuids with their generations, the incarnation in which all of them were read as in
	// Fetch's header ('' = they differ, or it is over), and the sequence as of a read in that incarnation.
	SettlePublished = `UPDATE {outbox} SET published_at = clock_timestamp(), dead_at = NULL
 WHERE ` + oneOf + ` AND published_at IS NULL` + sameMessage

	// SettlePublishedDelete deletes the messages, for an outbox without a retention.
	//
	// Arguments: as for SettlePublished.
	SettlePublishedDelete = `DELETE FROM {outbox} WHERE ` + oneOf + sameMessage

	// oneOf finds rows by their ids. The bounds let the planner exclude partitions, as an array does only in a plan
	// made for its values.
	oneOf = `id = ANY ($1::bigint[]) AND id BETWEEN ($1::bigint[])[1] AND ($1::bigint[])[cardinality($1::bigint[])]`

	// The comparison of incarnations is computed once, after the statement's snapshot: the rows that it sees belong to
	// that incarnation. The hash of the last part is built only if it is needed.
	sameMessage = ` AND (` + firstGeneration + `
      OR ` + sameGeneration + `)`

	firstGeneration = `(due_at IS NULL OR coalesce(metadata->>'outbox_generation', '') = '') AND ` + sameLife

	sameGeneration = `(id, ` + generation + `) IN (SELECT * FROM unnest($1::bigint[], $2::text[]))`

	// generation is a uuid and its generation, which only acts of package admin set.
	generation = `uuid || coalesce('/' || nullif(metadata->>'outbox_generation', ''), '')`

	sameLife = `{life} = $3::text AND (SELECT s.last_value FROM {outbox_id_seq} s) >= $4::bigint`

	// SettleSpan marks all messages of an inclusive range of ids published, except some. It does not compare uuids: in
	// another incarnation it does nothing, and it skips rows with a generation. It scans the index once instead of looking
	// up each id, which costs half as much.
	//
	// Arguments: the lowest and the highest id; incarnation and sequence as for SettlePublished; ids to leave out.
	SettleSpan = `UPDATE {outbox} SET published_at = clock_timestamp(), dead_at = NULL` + inSpan +
		` AND published_at IS NULL`

	// SettleSpanDelete deletes the messages, for an outbox without a retention.
	//
	// Arguments: as for SettleSpan.
	SettleSpanDelete = `DELETE FROM {outbox}` + inSpan

	inSpan = `
 WHERE id BETWEEN $1::bigint AND $2::bigint AND id <> ALL ($5::bigint[]) AND ` + firstGeneration

	// SettleUnlocked does the same as SettlePublished, but skips messages locked by other transactions and returns their
	// ids.
	//
	// Arguments: ids, ascending; uuids with their generations.
	SettleUnlocked = unlocked + `, settled AS (
    UPDATE {outbox} o SET published_at = clock_timestamp(), dead_at = NULL FROM free WHERE o.id = free.id
)` + stillLocked

	// SettleUnlockedDelete deletes the messages, for an outbox without a retention.
	//
	// Arguments: as for SettleUnlocked.
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
