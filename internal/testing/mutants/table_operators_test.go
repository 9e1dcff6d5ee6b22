package mutants

// adminMutants are those of what operators do and see.
var adminMutants = []Mutant{
	{
		Name: "A3", File: "internal/sqltext/admin_redrive.go", In: "integration_test", Test: "TestRedriveIsOneTransaction",
		Breaks: "a message that is not dead any more is redriven",
		Old:    "AND i.message_id = w.message_id AND ` + InboxState + ` = ANY ($3::text[])",
		New:    "AND i.message_id = w.message_id AND cardinality($3::text[]) > 0",
	},
	{
		Name: "A5", File: "internal/sqltext/stores.go", In: "integration_test", Test: "TestActsLeaveWhatIsWorkedOn",
		Breaks: "an act changes a message of the queue that somebody works on",
		Old:    `free: " AND q.owner IS NULL AND q.topic <> ''"`,
		New:    `free: " AND q.topic <> ''"`,
	},
	{
		Name: "A6", File: "internal/sqltext/stores.go", In: "integration_test", Test: "TestQueueActs",
		Breaks: "a requeued message of the queue expires at once",
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
		Name: "A16", File: "admin/timeline.go", In: "integration_test", Test: "TestTimelineOfTheInbox",
		Breaks: "the timeline of a requeued message begins with the act",
		Old:    "if len(acts) == 0 && !n.Received.IsZero() {",
		New:    "if false {",
	},
}
