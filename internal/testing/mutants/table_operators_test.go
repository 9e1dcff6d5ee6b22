package mutants

// adminMutants are mutants of operators' acts and views.
var adminMutants = []Mutant{
	{
		Name: "A3", File: "internal/sqltext/admin_redrive.go", In: "integration_test", Test: "TestRedriveIsOneTransaction",
		Breaks: "a message that is no longer dead is redriven",
		Old:    "AND i.message_id = w.message_id AND ` + InboxState + ` = ANY ($3::text[])",
		New:    "AND i.message_id = w.message_id AND cardinality($3::text[]) > 0",
	},
	{
		Name: "A4", File: "internal/sqltext/store.go", In: "integration_test",
		Test:   "TestActLeavesWhatHasChangedSinceItWasFound",
		Breaks: "an act changes a message whose state has changed since it was found",
		Old:    "= w.version AND {state} = ANY ($3::text[]){free}{old} LIMIT 1",
		New:    "= w.version AND cardinality($3::text[]) > 0{free}{old} LIMIT 1",
	},
	{
		Name: "A5", File: "internal/sqltext/stores.go", In: "integration_test", Test: "TestActsLeaveWhatIsWorkedOn",
		Breaks: "an act changes a message of the queue that is being handled",
		Old:    `free: " AND q.owner IS NULL AND q.topic <> ''"`,
		New:    `free: " AND q.topic <> ''"`,
	},
	{
		Name: "A6", File: "internal/sqltext/stores.go", In: "integration_test", Test: "TestQueueActs",
		Breaks: "a requeued message of the queue expires immediately",
		Old:    "done_at = NULL,\n         expires_at = NULL`",
		New:    "done_at = NULL`",
	},
	{
		Name: "A7", File: "internal/sqltext/stores.go", In: "integration_test", Test: "TestQueueActs",
		Breaks: "a requeued message of the queue is still suspected of killing processes",
		Old:    "due_at = statement_timestamp(), attempts = 0, crashes = 0,",
		New:    "due_at = statement_timestamp(), attempts = 0,",
	},
	{
		Name: "A8", File: "internal/sqltext/stores.go", In: "integration_test",
		Test:   "TestWhatFollowsASkippedMessageIsSkipped",
		Breaks: "a requeued message overtakes one of its key that was locked",
		Old:    "WHERE o.id = l.id AND NOT EXISTS (SELECT FROM blocked b WHERE b.key = l.key AND b.id < l.id)",
		New:    "WHERE o.id = l.id",
	},
	{
		Name: "A9", File: "admin/store.go", In: "integration_test", Test: "TestWhatFollowsASkippedMessageIsSkipped",
		Breaks: "the next batch overtakes a message of its key that was locked",
		Old:    "	d.skipped = append(d.skipped, keys...)\n",
		New:    "",
	},
	{
		Name: "A10", File: "internal/sqltext/admin_outbox.go", In: "integration_test",
		Test:   "TestWhatComesBackTogetherFallsDueInOrder",
		Breaks: "messages requeued together are published in another order",
		Old:    "requeued = `due_at = statement_timestamp(),",
		New:    "requeued = `due_at = clock_timestamp() - o.id * interval '1 minute',",
	},
	{
		Name: "A11", File: "internal/sqltext/admin_outbox.go", In: "integration_test", Test: "TestActs",
		Breaks: "JetStream drops requeued messages as duplicates",
		Old:    "'0')::bigint + 1)::text)`",
		New:    "'0')::bigint + 0)::text)`",
	},
	{
		Name: "A12", File: "admin/preview.go", In: "integration_test", Test: "TestActsDoWhatWasConfirmed",
		Breaks: "an act changes messages that its preview did not count",
		Old:    "return q.only != nil && !q.only[p.digest()]",
		New:    "return false",
	},
	{
		Name: "A13", File: "admin/act.go", In: "integration_test", Test: "TestActsThatAreRefused",
		Breaks: "an act without a filter changes all messages",
		Old:    "case !bound && !f.All:",
		New:    "case !bound && !f.All && act.Limit < 0:",
	},
	{
		Name: "A15", File: "admin/find.go", In: "integration_test", Test: "TestFind",
		Breaks: "a message is found twice",
		Old:    "			if !before {",
		New:    "			if true || before {",
	},
	{
		Name: "A16", File: "admin/timeline.go", In: "integration_test", Test: "TestTimelineOfTheInbox",
		Breaks: "the timeline of a requeued message begins with the act",
		Old:    "if len(acts) == 0 && !n.Received.IsZero() {",
		New:    "if false {",
	},
	{
		Name: "A18", File: "internal/sqltext/stores.go", In: "integration_test", Test: "TestActsPassByLocks",
		Breaks: "an act waits for a message that another session has locked",
		Old:    "     ORDER BY o.id FOR UPDATE OF o SKIP LOCKED\n",
		New:    "     ORDER BY o.id FOR UPDATE OF o\n",
	},
	{
		Name: "A19", File: "admin/act.go", In: "integration_test", Test: "TestActIsCutOff",
		Breaks: "an interrupted act is never recorded as ended",
		Old:    "	_ = a.exec(ctx, sqltext.EndAct, audit, outcome)",
		New:    "	_ = outcome",
	},
	{
		Name: "A20", File: "internal/sqltext/admin_outbox.go", In: "integration_test", Test: "TestActs",
		Breaks: "a discarded message is published when the retention is over",
		Old:    "discarded = `published_at = clock_timestamp(), dead_at",
		New:    "discarded = `due_at = clock_timestamp(), dead_at",
	},
	{
		Name: "A21", File: "admin/partitions_drop.go", In: "integration_test", Test: "TestChangesBetweenLookAndLock",
		Breaks: "a partition is emptied with a message that became pending after it was read",
		Old:    "	if *why, err = m.holds(ctx, q, p); err != nil || *why != \"\" {\n\t\treturn err\n\t}\n",
		New:    "",
	},
	{
		Name: "A22", File: "observe/prom/sample.go", In: "integration_test", Test: "TestCollectorOverEachHandle",
		Breaks: "the metrics count ready messages or due ones, but not both",
		Old:    "= counted{was.n + c.n, max(was.oldest, c.oldest)}",
		New:    "= counted{c.n, max(was.oldest, c.oldest)}",
	},
	{
		Name: "A23", File: "internal/sqltext/forward_fetch.go", In: "integration_test",
		Test:   "TestRequeuedLargeMessagesWaitForTheirBackoff",
		Breaks: "a large requeued message counts as requeued again while it is in flight",
		Old:    "jsonb_build_object('outbox_generation', r.metadata->'outbox_generation')",
		New:    "NULL",
	},
}
