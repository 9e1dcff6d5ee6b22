package mutants

// queueMutants are mutants of the durable queue.
var queueMutants = []Mutant{
	{
		Name: "Q1", File: "queue/group.go", In: "queue", Test: "TestADatabaseHasHalfOfAGroup",
		Breaks: "one database of a Group takes all of its slots",
		Old:    "most = max(1, most/2)",
		New:    "most = max(1, most)",
	},
	{
		Name: "Q2", File: "queue/group_worker.go", In: "queue", Test: "TestBurialsFreeNoSlotOfAGroup",
		Breaks: "a burial frees a slot that it did not have, and a Group handles more at once than it may",
		Old:    "	if c.expired {\n		return\n	}\n	g.mu.Lock()",
		New:    "	g.mu.Lock()",
	},
	{
		Name: "Q3", File: "queue/schedule.go", In: "queue", Test: "TestScheduleOfATopicWithALimit",
		Breaks: "a burial takes a slot of its topic",
		Old:    "t != nil && !buried {\n		t.taken++",
		New:    "t != nil {\n		t.taken++",
	},
	{
		Name: "Q4", File: "internal/sqltext/states.go", In: "integration_test",
		Test:   "TestADelayedMessageIsAsOldAsItsDueTime",
		Breaks: "a delayed message is as old as its Enqueue, and not as its due time",
		Old:    "  THEN q.due_at ELSE q.first_seen_at END, timestamptz",
		New:    "  THEN q.first_seen_at ELSE q.first_seen_at END, timestamptz",
	},
	{
		Name: "Q5", File: "queue/one_by_one.go", In: "integration_test", Test: "TestRefusedMessagesStopNoOther",
		Breaks: "a message that the database refuses stops all others",
		Old:    "	if failed != nil && !refusesRow(failed) ||",
		New:    "	if failed != nil ||",
	},
	{
		Name: "Q6", File: "internal/sqltext/queue.go", In: "integration_test", Test: "TestEnqueueWaitsForWhatIsGivenBack",
		Breaks: "the content of a message is lost that comes while it is given back behind a savepoint",
		Old:    "RETURNING CASE WHEN q.xmin <> pg_current_xact_id()::xid",
		New:    "RETURNING CASE WHEN q.xmin = '0'",
	},
	{
		Name: "Q7", File: "internal/sqltext/queue.go", In: "integration_test", Test: "TestEnqueueBesideAChangeOfItsRow",
		Breaks: "a copy of a message that is done is processed",
		Old:    "state = CASE q.state WHEN 'seen' THEN 'processing' ELSE q.state END,",
		New:    "state = 'processing',",
	},
	{
		Name: "Q8", File: "internal/sqltext/queue_settle.go", In: "integration_test", Test: "TestFailureIsChargedOnce",
		Breaks: "a failure whose answer was lost is charged twice",
		Old:    " + ofHeld + ` AND q.attempts = coalesce($7::int, q.attempts)\n",
		New:    " + ofHeld + ` AND $7::int IS DISTINCT FROM -1\n",
	},
	{
		Name: "Q9", File: "internal/sqltext/queue_unack.go", In: "integration_test", Test: "TestUnackOfOnesOwnAckOnly",
		Breaks: "the ack of another owner is taken back",
		Old:    "AND ` + ackNote + ` = $7::bigint`",
		New:    "AND $7::bigint > 0`",
	},
	{
		Name: "Q10", File: "internal/sqltext/queue.go", In: "integration_test", Second: true,
		Test:   "TestKnownMessagesWaitForTheStandby",
		Breaks: "a copy is acked by a row that a standby may not have",
		Old:    "ELSE pg_logical_emit_message(true, 'watermill_outbox', '') IS NOT NULL END)",
		New:    "ELSE true END)",
	},
	{
		Name: "Q11", File: "internal/sqltext/queue.go", In: "integration_test", Test: "TestIDsRiseInTheOrderOfTheCall",
		Breaks: "messages of one call are processed in another order",
		Old:    "     ORDER BY i.pos\n",
		New:    "     ORDER BY i.n\n",
	},
	{
		Name: "Q12", File: "internal/sqltext/queue_settle.go", In: "integration_test", Second: true,
		Test:   "TestKillerDiesAlone",
		Breaks: "a message that kills its process is never suspected",
		Old:    "crashes = least(q.crashes, 2147483646) + 1,",
		New:    "crashes = 0,",
	},
	{
		Name: "Q13", File: "internal/sqltext/queue.go", In: "integration_test", Test: "TestMarkedByHand",
		Breaks: "a message that was dead dies again of its old attempts",
		Old:    "SET state = 'processing', attempts = 0, crashes = 0, owner = NULL, locked_until = NULL, expires_at = NULL,",
		New:    "SET state = 'processing', owner = NULL, locked_until = NULL, expires_at = NULL,",
	},
	{
		Name: "Q14", File: "internal/sqltext/queue.go", In: "integration_test", Test: "TestEnqueueBesideAChangeOfItsRow",
		Breaks: "a copy replaces the content of a message that is being handled",
		Old:    "     WHERE q.owner IS NULL\n    RETURNING q.source, q.message_id, CASE",
		New:    "    RETURNING q.source, q.message_id, CASE",
	},
	{
		Name: "Q15", File: "internal/sqltext/queue_settle.go", In: "integration_test", Test: "TestReapLeavesWhatIsHandled",
		Breaks: "a message is taken from an owner whose lease is not over",
		Old:    "q.owner IS NOT NULL AND q.locked_until < statement_timestamp()`",
		New:    "q.owner IS NOT NULL`",
	},
	{
		Name: "Q16", File: "internal/sqltext/queue_settle.go", In: "integration_test", Test: "TestReapLeavesWhatIsHandled",
		Breaks: "a message expires while it is handled",
		Old:    "       AND q.owner IS NULL AND q.id <> ALL ($2::bigint[])\n",
		New:    "       AND q.id <> ALL ($2::bigint[])\n",
	},
	{
		Name: "Q17", File: "internal/sqltext/queue_settle.go", In: "integration_test", Test: "TestStaleOwnerChangesNothing",
		Breaks: "an owner settles a message that another one has by now",
		Old: "AND q.owner = $1::uuid\n           `\n	// Only a row in processing has an owner.\n" +
			"	ofHeld = `  FROM held h WHERE q.ctid = h.ctid AND q.owner = $1::uuid`",
		New: "AND $1::uuid IS NOT NULL\n           `\n	ofHeld = `  FROM held h WHERE q.ctid = h.ctid`",
	},
	{
		Name: "Q20", File: "internal/sqltext/queue_claim.go", In: "integration_test",
		Test:   "TestASuspectOfABusyTopicHoldsUpNoOther",
		Breaks: "a message that killed a process, of a topic without a free slot, takes the slot that those of other topics wait for",
		Old:    "WHERE l.room <= 0))`",
		New:    "WHERE l.room < 0))`",
	},
	{
		Name: "Q18", File: "internal/text/refused.go", In: "internal/text", Test: "TestRefusesRow",
		Breaks: "a trigger that raises a code about rights stops the whole queue",
		Old:    `routine == "exec_stmt_raise" ||`,
		New:    ``,
	},
	{
		Name: "Q19", File: "queue/settle.go", In: "integration_test", Test: "TestRefusedMessagesOfCallers",
		Breaks: "an ack that a trigger swallows counts as a lost lease",
		Old:    "if err == nil && held {",
		New:    "if false {",
	},
}
