package integration_test

import (
	"context"
	"errors"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/queue"
)

// handles starts a dispatcher that handles a topic of the queue.
func (n *night) handles(topic string, handle func() error) {
	n.Helper()
	dispatching(n, storeOn(n, n.h, quickStore()), quickDispatcher(map[string]queue.Handler{
		topic: {Handle: func(context.Context, *queue.Message) error { return handle() }},
	}))
}

func well() error { return nil }

// stored writes messages of the queue as they came 20 minutes ago.
func (n *night) stored(topic string, count int) {
	n.Helper()
	storeAll(n, storeOn(n, n.h, quickStore()), items(topic, count)...)
	n.h.exec(n, "UPDATE inbox_queue SET first_seen_at = now() - interval '20 minutes'")
}

var faultsOfTheQueue = []fault{
	{
		name: "the queue has a topic without a handler", check: "queue_unhandled", severity: admin.Critical,
		alert: "QueueTopicUnhandled", always: true, did: "a dispatcher with a handler was started",
		inject: func(n *night) { n.stored("letters", 3); n.handles("other", well) },
		cure:   func(n *night, _ admin.Finding) { n.handles("letters", well) },
	},
	{
		name: "a stopping dispatcher handed a delayed message back, due 16 minutes ago", check: "queue_unhandled",
		severity: admin.Critical, alert: "QueueTopicUnhandled", always: true, did: "a dispatcher with a handler was started",
		inject: func(n *night) {
			n.stored("letters", 1)
			n.h.exec(n, "UPDATE inbox_queue SET due_at = now() - interval '16 minutes'")
		},
		cure: func(n *night, _ admin.Finding) { n.handles("letters", well) },
	},
	{
		name: "handlers of the queue are too slow", check: "queue_waits", severity: admin.Critical,
		alert: "QueueMessagesLate", did: "the handler was made faster", inject: func(n *night) {
			n.stored("letters", 500)
			fast := &n.fast
			n.handles("letters", func() error {
				if !fast.Load() {
					<-time.After(300 * time.Millisecond)
				}
				return nil
			})
		},
		cure: func(n *night, _ admin.Finding) { n.fast.Store(true) },
	},
	{
		name: "a dispatcher was killed while it handled a message", check: "queue_abandoned", severity: admin.Warning,
		always: true, did: "a dispatcher was started", inject: func(n *night) {
			s := storeOn(n, n.h, quickStore())
			storeAll(n, s, items("letters", 1)...)
			_, err := s.Claim(n.Context(), queue.Claim{Owner: queue.NewOwner(), LeaseTTL: time.Minute, Limit: 1})
			require.NoError(n, err)
			n.h.exec(n, "UPDATE inbox_queue SET locked_until = now() - interval '11 minutes'")
		},
		cure: func(n *night, _ admin.Finding) { n.handles("letters", well) },
	},
	{
		name: "a message kills the process that handles it", check: "queue_crashes", severity: admin.Warning, always: true,
		did: "`outboxctl queue discard` of the message that is named", inject: func(n *night) {
			n.stored("letters", 3)
			n.h.exec(n, `UPDATE inbox_queue SET crashes = 4, attempts = 4, last_error = 'lease expired', due_at = now(),
				first_seen_at = now() WHERE message_id = 'letters-1'`)
			n.h.exec(n, "UPDATE inbox_queue SET first_seen_at = now()")
			f := ails(n, n.h, "queue_crashes")
			assert.Contains(n, f.Evidence, "message test:letters-1 has done so 4 times")
			assert.Contains(n, ctl{t: n.T, url: n.h.url}.run("queue", "show", "test:letters-1").out, "crashes: 4")
			assert.Contains(n, ctl{t: n.T, url: n.h.url}.run("queue", "list", "--state", "failing").out, "crashes: 4")
		},
		cure: func(n *night, f admin.Finding) { order(n.T, n.h, f, "discard", "--yes") },
	},
	{
		name: "messages of the queue are dead", check: "dead", severity: admin.Warning, alert: "QueueMessagesDead",
		always: true, did: "`outboxctl queue requeue`, when the handler was correct", inject: func(n *night) {
			n.fast.Store(false)
			correct := &n.fast
			n.handles("letters", func() error {
				if !correct.Load() {
					return outbox.Poison(errors.New("no such account"))
				}
				return nil
			})
			storeAll(n, storeOn(n, n.h, quickStore()), items("letters", 2)...)
		},
		cure: func(n *night, f admin.Finding) { n.fast.Store(true); order(n.T, n.h, f, "requeue", "--yes") },
	},
	{
		name: "a handler of the queue has failed for 2 h", check: "failing", severity: admin.Warning,
		alert: "QueueMessagesFailing", always: true, did: "the handler was corrected", inject: func(n *night) {
			n.h.exec(n, `INSERT INTO inbox_queue (source, message_id, topic, payload, state, first_seen_at, due_at, attempts,
				last_error) VALUES ('bank', 'a', 'letters', '', 'processing', now() - interval '2 hours', now() + interval '1 minute', 7,
				'the bank is closed')`)
		},
		cure: func(n *night, _ admin.Finding) {
			n.h.exec(n, "UPDATE inbox_queue SET due_at = now()")
			n.handles("letters", well)
		},
	},
	{
		name: "a consumer's messages are dead", check: "dead", severity: admin.Warning, alert: "InboxMessagesDead",
		always: true, did: "`outboxctl inbox discard`", inject: func(n *night) {
			n.h.exec(n, `INSERT INTO inbox (consumer, message_id, received_at, attempts, last_error, processed_at, dead_at)
				VALUES ('shop/book', 'a', now(), 10, 'no relation "bookings"', NULL, now())`)
		},
		cure: func(n *night, f admin.Finding) { order(n.T, n.h, f, "discard", "--yes") },
	},
	{
		name: "a consumer's message has failed for 2 h, and is not redelivered", check: "failing",
		severity: admin.Warning, alert: "InboxMessagesFailing", always: true, did: "`outboxctl inbox discard`",
		inject: func(n *night) {
			n.h.exec(n, `INSERT INTO inbox (consumer, message_id, received_at, attempts, last_error)
				VALUES ('shop/book', 'a', now() - interval '2 hours', 7, 'no relation "bookings"')`)
		},
		cure: func(n *night, f admin.Finding) { order(n.T, n.h, f, "discard", "--yes") },
	},
}
