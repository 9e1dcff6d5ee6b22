package integration_test

import (
	"fmt"
	"strings"
)

// ibxDocument writes ibx.md.
func ibxDocument() string {
	var b strings.Builder
	count := map[verdict]int{}
	for _, s := range ibxSections {
		for _, r := range s.requirements {
			count[r.verdict]++
		}
	}
	fmt.Fprintf(&b, "%s\nOf the 130 requirements %d are met, %d are met differently, and %d are not applicable.",
		ibxIntroduction,
		count[held], count[differs], count[notApplicable])
	if n := count[missing]; n > 0 {
		fmt.Fprintf(&b, " %d are missing.", n)
	}
	b.WriteString("\n")
	for _, s := range ibxSections {
		fmt.Fprintf(&b, "\n## %s\n\n| | requirement | | difference, and tests |\n|---|---|---|---|\n", s.title)
		for _, r := range s.requirements {
			var shown []string
			if r.test != nil {
				shown = append(shown, fmt.Sprintf("`TestIBX/IBX-%03d`", r.number))
			}
			for name := range strings.FieldsSeq(r.shownBy) {
				shown = append(shown, "`"+name+"`")
			}
			fmt.Fprintf(&b, "| IBX-%03d | %s | %s | %s |\n", r.number, r.text, r.verdict,
				strings.TrimSpace(r.why+" "+strings.Join(shown, ", ")))
		}
	}
	b.WriteString(ibxElsewhere)
	return b.String()
}

const ibxIntroduction = `# The durable queue, requirement by requirement

<!-- Written by make ibx from integration_test/ibx_*_test.go. -->

For contributors to package ` + "`queue`" + `. It follows the functional specification of an inbox component for C# and SQL
Server (IBX-001 to IBX-130). This page lists its requirements and the tests that show them, as far as tests can.
` + "`TestIBX`" + ` runs with pgx, and as ` + "`TestIBXOverDatabaseSQL`" + ` with database/sql; other tests with pgx unless their names
say otherwise.

A requirement is "met" as written, for a message that is stored here and handled by a Dispatcher, or "met differently"
with the stated difference.
`

// ibxElsewhere covers the parts of the specification without numbers.
const ibxElsewhere = `
## Sections without numbered requirements

### 2 and 3: purpose, scope, non-goals

| specification | here |
|---|---|
| at most once, exactly once (2.1) | Once in the database: a handler in a transaction commits together with its ack. Its effects outside the database may happen twice, as in any system. |
| duplicate detection, work queue, routing by topic, retries, many databases (2.2) | Supported: Store, Dispatcher, Group. |
| SQL Server backend (2.3) | PostgreSQL 13 and newer. |
| broker integration out of scope (2.3) | In scope: Ingest stores messages of any Watermill subscriber, NewSubscriber delivers stored messages to any Router. |
| transformation, ordering in a topic, priorities out of scope (2.3, 3) | The same. For order per key, use forwarder.Subscriber with an outbox table of its own. |
| no prevention of external retries, no transactions across databases, no business logic (3) | The same. |

### 4: concepts

| specification | here |
|---|---|
| InboxMessageIdentifier | queue.ID{Source, MessageID} |
| OwnerToken | queue.Owner, NewOwner() |
| Claim, Ack, Abandon, Fail, Reap | the same; also Renew, and Release, which makes a message available again without a charge |
| Seen, Processing, Done, Dead (4.4) | the same. Done rows drop payload and metadata unless StoreConfig.KeepPayload is set. |
| Inbox Store, Store Provider, Selection Strategy, Router (4.5) | queue.Store, queue.Stores over a fleet.Fleet, fleet.Selection, Stores.Get |
| Due Time, Deferred Message, Next Attempt Time (4.6) | one column, due_at: the wait after a failure and the due time are never both needed |
| message id and hash deduplication, idempotency window (4.7) | the same; the window is StoreConfig.Retention after a message is done, 30 days |

### 5: the interfaces

| specification | here |
|---|---|
| IInbox.AlreadyProcessedAsync, with and without hash | Store.AlreadyProcessed(ctx, id, hash); a nil hash means none |
| IInbox.MarkProcessingAsync | Store.MarkProcessing: the caller handles the message, and no one else can claim it |
| IInbox.MarkProcessedAsync, MarkDeadAsync | Store.MarkProcessed, Store.MarkDead (with a reason); they take the message from its owner. A done message stays done. ErrNotFound if it does not exist. |
| IInbox.EnqueueAsync | Store.Enqueue, any number of items in one transaction; returns the result of each: new, updated, already done, busy |
| dueTimeUtc must be UTC | any time.Time |
| IInboxWorkStore.ClaimAsync returns ids | Store.Claim returns messages |
| AckAsync and the others return nothing | the number of rows that the owner still had |
| lastError null or empty | an empty one keeps the last error |
| ReapExpiredAsync stops when cancelled | between batches of 250 |
| GetAsync by message id alone | by ID, because a message id is unique only within its source |
| IInboxHandler | queue.Handler, in DispatcherConfig.Handlers by topic |
| IInboxRouter.GetInbox throws | Stores.Get returns fleet.ErrUnknownDatabase |
| InboxMessage (5.2.1) | queue.Message: the same fields, and Key, Metadata, ExpiresAt, State, DB |
| SqlInboxOptions (5.2.2): connection string, schema, table | the pool is yours; outbox.Tables{Schema, Queue}. EnableSchemaDeployment: see IBX-114. |
| AddSqlInbox, AddMultiSqlInbox, AddDynamicMultiSqlInbox, AddInboxHandler (5.3) | NewStore, NewStores over fleet.Static or a Discovery; no container is needed |

### 7.1: settings

| specification | here |
|---|---|
| PollingIntervalSeconds 0.5 | DispatcherConfig.PollInterval; commits also wake it |
| BatchSize 50, LeaseSeconds 30 | DispatcherConfig.BatchSize, LeaseTTL |
| MaxAttempts 10, CleanupRetentionDays 30 | StoreConfig.MaxAttempts, Retention |

### 8: open questions

| question | answer |
|---|---|
| 8.1 ordering | Claims are not ordered by key: a busy key would starve all others. forwarder.Subscriber keeps the order of each key at full speed. |
| 8.2 dead letters | DispatcherConfig.OnDead runs in the transaction in which a message dies; package admin lists, counts and requeues dead messages. Each death is logged as an error and reported to observers, with or without OnDead. |
| 8.3 time to live | Item.ExpiresAt: a message not handled by then is dead, with the reason "expired" (` + "`TestExpiry`" + `). |
| 8.4 hash algorithm | SHA-256, with StoreConfig.HashContent or queue.SHA256. Any bytes are accepted; always use the same algorithm. |

### Appendices

| specification | here |
|---|---|
| A: table Inbox | inbox_queue: no NextAttemptAt (see 4.6), but key, metadata, expires_at, crashes and done_at. The primary key is the same. Instead of one index on Status and times, claims use two partial indexes: on the ids of ready messages, and on the due times of waiting ones (` + "`TestPlansOfQueue`" + `); the index for clean-up is on done_at. |
| B: a handler | a function of (ctx, *queue.Message) |
| C: a webhook | queue.NewWebhook. AlreadyProcessed before Enqueue is not needed: Enqueue reports the same in one statement. Compare signatures in constant time, try all of them, tolerate wrong clocks, and respond with 200 only after the commit. |
| D: many tenants | Stores.Get(key) and Enqueue |
`
