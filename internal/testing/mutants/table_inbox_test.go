package mutants

// inboxMutants are mutants of the inbox, of dead letters, and of the other middlewares.
var inboxMutants = []Mutant{
	{
		Name: "I1", File: "internal/sqltext/inbox.go", In: "integration_test", Test: "TestInboxHandlesAMessageOnce",
		Breaks: "a message that was handled is handled again",
		Old:    " WHERE i.processed_at IS NULL AND i.dead_at IS NULL\nRETURNING true",
		New:    " WHERE i.dead_at IS NULL\nRETURNING true",
	},
	{
		Name: "I2", File: "internal/sqltext/inbox.go", In: "integration_test", Test: "TestFailuresAreCounted",
		Breaks: "a dead message is handled",
		Old:    " WHERE i.processed_at IS NULL AND i.dead_at IS NULL\nRETURNING true",
		New:    " WHERE i.processed_at IS NULL\nRETURNING true",
	},
	{
		Name: "I3", File: "internal/sqltext/inbox.go", In: "integration_test",
		Test:   "TestErrorHandlerLeavesProcessedMessagesAlone",
		Breaks: "a failure is charged to a message that a copy has processed",
		Old: ` WHERE i.processed_at IS NULL AND i.dead_at IS NULL` + "`" + `

	// InboxFailures`,
		New: ` WHERE i.dead_at IS NULL` + "`" + `

	// InboxFailures`,
	},
	{
		Name: "I4", File: "internal/sqltext/inbox.go", In: "integration_test",
		Test:   "TestErrorHandlerLeavesProcessedMessagesAlone",
		Breaks: "a message dies although a copy was processed",
		Old:    " WHERE i.processed_at IS NULL AND i.dead_at IS NULL\nRETURNING i.revived",
		New:    " WHERE i.dead_at IS NULL\nRETURNING i.revived",
	},
	{
		Name: "I5", File: "internal/sqltext/inbox.go", In: "integration_test", Test: "TestHandlerThatEndsTheTransaction",
		Breaks: "the claim of another copy is undone",
		Old:    "AND (extract(epoch FROM processed_at) * 1000000)::bigint = $3::bigint",
		New:    "AND $3::bigint > 0",
	},
	{
		Name: "I6", File: "middleware/error_handler.go", In: "integration_test", Test: "TestHandlerThatEndsTheTransaction",
		Breaks: "a message counts as handled although its handler ended the transaction and failed",
		Old:    "	if errors.Is(err, outbox.ErrTxEnded) {",
		New:    "	if false {",
	},
	{
		Name: "I7", File: "internal/sqltext/inbox.go", In: "integration_test", Second: true,
		Test:   "TestADuplicateWaitsForTheStandby",
		Breaks: "after OnBegin failed, a copy is acked because of a row that a standby may not have",
		Old:    "FROM {inbox} WHERE consumer = $1 AND message_id = $2 FOR UPDATE`",
		New:    "FROM {inbox} WHERE consumer = $1 AND message_id = $2`",
	},
	{
		Name: "I8", File: "internal/sqltext/inbox.go", In: "integration_test", Test: "TestCleaningTheInbox",
		Breaks: "dead messages are cleaned away",
		Old:    "AND processed_at IS NULL AND dead_at IS NULL\n     ORDER BY",
		New:    "AND processed_at IS NULL\n     ORDER BY",
	},
	{
		Name: "I9", File: "middleware/dead_letter.go", In: "integration_test", Test: "TestOutcomesOfErrors",
		Breaks: "two changed copies of a message have dead letters with the same UUID",
		Old:    `fmt.Sprintf("%s %x", id, core.PayloadHash(msg.Payload))`,
		New:    `fmt.Sprintf("%s %x", id, core.PayloadHash(nil))`,
	},
	{
		Name: "I10", File: "middleware/dead_letter.go", In: "integration_test", Test: "TestEachDeathHasItsOwnDeadLetter",
		Breaks: "a message that died twice has dead letters with the same UUID",
		Old:    "revived, len(id), id",
		New:    "0, len(id), id",
	},
	{
		Name: "I11", File: "middleware/dead_letter.go", In: "integration_test", Test: "TestEachDeathHasItsOwnDeadLetter",
		Breaks: "the dead letters of two consumers have the same UUID",
		Old:    "len(generation), generation, consumer)",
		New:    "len(generation), generation, consumer[:0])",
	},
	{
		Name: "I12", File: "middleware/dead_letter.go", In: "integration_test", Test: "TestADeadLetterDiesWhereItIsStored",
		Breaks: "dead letters of dead letters are written",
		Old:    "err != nil || !marked || o.isDeadLetter(ctx) {",
		New:    "err != nil || !marked {",
	},
	{
		Name: "I13", File: "middleware/decide.go", In: "integration_test", Test: "TestErrorHandlerDeadByDefault",
		Breaks: "a short outage kills messages",
		Old:    " && n.chargedFor >= o.cfg.MinDeadAge {",
		New:    " && n.chargedFor >= 0 {",
	},
	{
		Name: "I14", File: "middleware/decide.go", In: "integration_test", Test: "TestNoConnectionAtTheLastAttempt",
		Breaks: "a message dies although its handler was not called for lack of a connection",
		Old:    " && !errors.Is(err, core.ErrNotBegun) {",
		New:    " {",
	},
	{
		Name: "I15", File: "middleware/error_handler.go", In: "integration_test", Test: "TestDeadLetterIsAllOrNothing",
		Breaks: "a dead letter that cannot be written is not recorded",
		Old:    "			o.record(ctx, msg, h.claim, sqltext.FailInbox, text.OfError(fmt.Errorf(\"%w: %w\", writeErr, err)))\n",
		New:    "",
	},
	{
		Name: "I16", File: "middleware/error_handler.go", In: "integration_test", Test: "TestNothingIsReturnedOfAMessagePutAside",
		Breaks: "messages that the handler of a failed message returned are published",
		Old:    "outcome != observe.Processed {",
		New:    "false {",
	},
	{
		Name: "I17", File: "middleware/tx.go", In: "integration_test", Test: "TestTxHandlerWorksOnACopy",
		Breaks: "the transaction of a handler that nacked is committed",
		Old:    "if nacked(attempt) {",
		New:    "if false {",
	},
	{
		Name: "I18", File: "middleware/tx.go", In: "integration_test", Test: "TestTxUnknownCommitIsNotRepeated",
		Breaks: "a handler is repeated although its COMMIT may have succeeded",
		Old:    "if errors.Is(err, outbox.ErrCommitUnknown) || errors.Is(err, outbox.ErrPoison)",
		New:    "if errors.Is(err, outbox.ErrCommitUnknown) {\n		return true\n	}\n	if errors.Is(err, outbox.ErrPoison)",
	},
	{
		Name: "I19", File: "middleware/tx.go", In: "integration_test", Test: "TestTxHandlerWorksOnACopy",
		Breaks: "a handler's changes of its copy are visible outside, and to the next attempt",
		Old:    "	attempt.Payload = slices.Clone(msg.Payload)\n",
		New:    "	_ = slices.Clone(msg.Payload)\n",
	},
	{
		Name: "I20", File: "middleware/tx.go", In: "integration_test", Test: "TestTxLeavesATransactionInTheContextAlone",
		Breaks: "a handler joins the transaction of the code that published its message",
		Old:    "joins := (h.inTx || t.cfg.JoinContext) && !errors.Is(err, outbox.ErrNoTx)",
		New:    "joins := !errors.Is(err, outbox.ErrNoTx)",
	},
	{
		Name: "I21", File: "middleware/inbox.go", In: "integration_test", Test: "TestInboxNeedsWhatIsAroundIt",
		Breaks: "messages that a handler returns are published by the Router, after the commit",
		Old:    "err = fmt.Errorf(\"inbox: handler %s: %w\", who, errUncaptured)",
		New:    "return produced, nil",
	},
	{
		Name: "I22", File: "middleware/uncharged.go", In: "integration_test", Test: "TestOutcomesOfErrors",
		Breaks: "a bad deploy charges messages",
		Old:    "return errors.As(err, &later) || miswired(err)",
		New:    "return errors.As(err, &later)",
	},
	{
		Name: "I23", File: "middleware/uncharged.go", In: "integration_test", Test: "TestRetryAfterOnABroker",
		Breaks: "a later retry holds its partition longer than Backoff.Max",
		Old:    "return outcome, min(wait, o.cfg.Backoff.Max), err",
		New:    "return outcome, wait, err",
	},
	{
		Name: "I24", File: "middleware/inbox.go", In: "integration_test", Test: "TestClaimedWork",
		Breaks: "the effects of a message are committed although another owner has its lease",
		Old:    "case !acked:",
		New:    "case !acked && i == nil:",
	},
	{
		Name: "I25", File: "internal/sqltext/inbox.go", In: "integration_test", Second: true,
		Test:   "TestADuplicateWaitsForTheStandby",
		Breaks: "a duplicate is acked because of a row that a standby may not have",
		Old:    "AND (processed_at IS NOT NULL OR dead_at IS NOT NULL) AND current_setting('synchronous_standby_names') = ''",
		New:    "AND (processed_at IS NOT NULL OR dead_at IS NOT NULL)",
	},
	{
		Name: "I26", File: "middleware/inbox.go", In: "integration_test", Second: true,
		Test:   "TestADuplicateWaitsForTheStandby",
		Breaks: "the transaction of a duplicate does not wait for the standby",
		Old:    "if !standby {",
		New:    "if !standby || true {",
	},
	{
		Name: "I27", File: "middleware/inbox.go", In: "integration_test", Test: "TestInboxContentCheck",
		Breaks: "a copy with other content is acked silently",
		Old:    "if known == nil || bytes.Equal(known, c.hash) {",
		New:    "if known == nil || bytes.Equal(c.hash, c.hash) {",
	},
	{
		Name: "I28", File: "middleware/handling.go", In: "integration_test", Test: "TestHandlersDoNotJoinTheirEarlierSelves",
		Breaks: "a message joins the handling of the one that published it",
		Old:    "h.uuid != msg.UUID || !h.tree.Has(msg.Context()) ||",
		New:    "",
	},
	{
		Name: "I29", File: "middleware/dead_letter.go", In: "integration_test", Test: "TestDeadLettersAndCopiesCommandNoBroker",
		Breaks: "a dead letter commands the broker as its message did",
		Old:    `if core.Mistyped(k) != "" || core.Commands(k) {`,
		New:    `if core.Mistyped(k) != "" {`,
	},
	{
		Name: "I30", File: "middleware/tx.go", In: "integration_test",
		Strike: "COMMIT fails by the same deadline; the line names the cause",
		Breaks: "the transaction of a handler that exceeded its timeout is committed",
		Old: `		if ctx.Err() != nil {
			return fmt.Errorf("the handler exceeded`,
		New: `		if false {
			return fmt.Errorf("the handler exceeded`,
	},
	{
		Name: "I31", File: "middleware/dead_letter.go", In: "integration_test", Test: "TestADeadLetterOfAMessageWithoutUUID",
		Breaks: "each redelivery of a message without a UUID has its own dead letter",
		Old:    `id == "" && at.Position != ""`,
		New:    `id == "" && at.Position == "never"`,
	},
	{
		Name: "I32", File: "forwarder/worker.go", In: "integration_test", Test: "TestDeathBehindAnOutbox",
		Breaks: "a message of a forwarder.Subscriber dies without its dead letter",
		Old:    "EnqueuedAt: r.CreatedAt, Last: e.isLast(w.call),",
		New:    "EnqueuedAt: r.CreatedAt,",
	},
	{
		Name: "I33", File: "forwarder/subscriber.go", In: "integration_test", Test: "TestCauseBehindAnOutbox",
		Breaks: "the error of a forwarder.Subscriber's handler is in no row",
		Old:    "failed.Store(nackedBecause(wait, cause))",
		New:    "failed.Store(nackedBecause(wait, outbox.ErrNacked))",
	},
	{
		Name: "I34", File: "forwarder/internal/dispatch/results.go", In: "integration_test",
		Test:   "TestRetryAfterBehindAnOutbox",
		Breaks: "the next message of a key overtakes one that waits after RetryAfter, in another process",
		Old:    "f.Attempts = max(r.Attempts, 1)",
		New:    "f.Attempts = r.Attempts",
	},
	{
		Name: "I35", File: "middleware/batch.go", In: "middleware", Test: "TestBatchReportsWhatNeverBegan",
		Breaks: "an attempt is counted for a message that left before its batch began",
		Old:    "			h.setFailure(0, err)\n",
		New:    "",
	},
	{
		Name: "I36", File: "middleware/batch_run.go", In: "integration_test", Test: "TestBatchRolledBack",
		Breaks: "a message that rolls back acks its whole batch with nothing committed",
		Old:    "mayRollBack = len(msgs) == 1",
		New:    "mayRollBack = true",
	},
	{
		Name: "I37", File: "middleware/batch_run.go", In: "integration_test", Test: "TestBatchOutlivesItsFirstMessage",
		Breaks: "the deadline of its first message limits a batch",
		Old:    "context.WithoutCancel(core.OutsideTx(batch[0].ctx))",
		New:    "core.OutsideTx(batch[0].ctx)",
	},
	{
		Name: "I38", File: "middleware/tx.go", In: "integration_test", Test: "TestTxRepeatsWhileItsRouterCloses",
		Breaks: "a serialization failure counts as a failed attempt while the Router closes",
		Old:    "		core.Pause(msg.Context(), core.Backoff(t.cfg.Backoff).Delay(n+1)) // shorter if the Router closes\n",
		New: `		if !core.Pause(msg.Context(), core.Backoff(t.cfg.Backoff).Delay(n+1)) {
			return nil, err
		}
`,
	},
}
