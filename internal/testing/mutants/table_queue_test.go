package mutants

// queueMutants are those of the durable queue.
var queueMutants = []Mutant{
	{
		Name: "Q1", File: "internal/sqltext/queue.go", In: "integration_test",
		Test:   "TestOtherContentOfABusyMessageIsRefused",
		Breaks: "a copy replaces the content of a message that is being handled",
		Old:    "     WHERE q.owner IS NULL\n    RETURNING q.source",
		New:    "    RETURNING q.source",
	},
	{
		Name: "Q2", File: "internal/sqltext/queue.go", In: "integration_test", Test: "TestEnqueueBesideAChangeOfItsRow",
		Breaks: "a copy of a message that is done is processed",
		Old:    "state = CASE q.state WHEN 'seen' THEN 'processing' ELSE q.state END,",
		New:    "state = 'processing',",
	},
	{
		Name: "Q3", File: "internal/sqltext/queue_settle.go", In: "integration_test", Test: "TestFailureIsChargedOnce",
		Breaks: "a failure whose answer was lost is charged twice",
		Old:    " + ofHeld + ` AND q.attempts = coalesce($7::int, q.attempts)`",
		New:    " + ofHeld + ` AND $7::int IS DISTINCT FROM -1`",
	},
	{
		Name: "Q4", File: "internal/sqltext/queue_settle.go", In: "integration_test", Test: "TestReapsBehindABacklog",
		Breaks: "a message is taken from the owner whose lease is not over",
		Old:    "q.owner IS NOT NULL AND q.locked_until < statement_timestamp()`",
		New:    "q.owner IS NOT NULL`",
	},
	{
		Name: "Q5", File: "internal/sqltext/queue_unack.go", In: "integration_test", Test: "TestUnackOfOnesOwnAckOnly",
		Breaks: "the ack of another owner is taken back",
		Old:    "AND ` + ackNote + ` = $7::bigint`",
		New:    "AND $7::bigint > 0`",
	},
	{
		Name: "Q6", File: "internal/sqltext/queue_settle.go", In: "integration_test", Test: "TestExpiredWhileItIsHandled",
		Breaks: "a message expires while it is handled",
		Old:    "       AND q.owner IS NULL\n     ORDER BY q.expires_at",
		New:    "     ORDER BY q.expires_at",
	},
	{
		Name: "Q7", File: "internal/sqltext/queue.go", In: "integration_test", Second: true,
		Test:   "TestKnownMessagesWaitForTheStandby",
		Breaks: "a copy is acked by a row that a standby may not have",
		Old:    "ELSE pg_logical_emit_message(true, 'watermill_outbox', '') IS NOT NULL END)",
		New:    "ELSE true END)",
	},
	{
		Name: "Q8", File: "internal/sqltext/queue.go", In: "integration_test", Test: "TestIDsRiseInTheOrderOfTheCall",
		Breaks: "messages of one call are processed in another order",
		Old:    "     ORDER BY i.pos\n",
		New:    "     ORDER BY i.n\n",
	},
	{
		Name: "Q9", File: "internal/sqltext/queue_settle.go", In: "integration_test", Second: true, Test: "TestKillerDiesAlone",
		Breaks: "a message that kills its process is never suspected",
		Old:    "crashes = least(q.crashes, 2147483646) + 1,",
		New:    "crashes = 0,",
	},
	{
		Name: "Q10", File: "internal/sqltext/queue.go", In: "integration_test", Test: "TestMarkedByHand",
		Breaks: "a message that was dead dies again of its old attempts",
		Old:    "SET state = 'processing', attempts = 0, crashes = 0, owner = NULL, locked_until = NULL, expires_at = NULL,",
		New:    "SET state = 'processing', owner = NULL, locked_until = NULL, expires_at = NULL,",
	},
	{
		Name: "Q11", File: "internal/sqltext/queue_settle.go", In: "integration_test", Test: "TestStaleOwnerChangesNothing",
		Breaks: "an owner settles a message that another one has by now",
		Old:    "AND q.state = 'processing' AND q.owner = $1::uuid\n           `",
		New:    "AND q.state = 'processing' AND $1::uuid IS NOT NULL\n           `",
	},
}
