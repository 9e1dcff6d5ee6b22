//go:build unix

package integration_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/summary"
)

// forwards starts a forwarder whose publisher answers with answer.
func (n *night) forwards(cfg forwarder.Config, answer func(string, *message.Message) error) {
	n.Helper()
	cfg.PublishTimeout = patience
	n.world = startForwarderOn(n, n.h, cfg, answer)
}

// killed runs a process with a forwarder, kills it, and makes its rows 20 minutes older.
func (n *night) killed(scope string, topics ...string) {
	n.Helper()
	cfg := childConfig{Handle: "pgx", LeaseTTL: time.Second, Scope: scope, Topics: topics}
	p := newCrashWorld(n, n.h, 1).start(cfg)
	p.kill()
	require.EqualValues(n, 1, n.h.exec(n, "UPDATE outbox_forwarders SET expires_at = now() - interval '20 minutes' "+
		"WHERE name = $1", p.cfg.Name))
}

// older makes all rows of the outbox older by this interval.
func (n *night) older(by string) {
	n.Helper()
	n.h.exec(n, "UPDATE outbox SET created_at = created_at - $1::interval", by)
}

func only(topics ...string) forwarder.Config {
	cfg := classifyingConfig()
	cfg.Topics = topics
	return cfg
}

var faultsOfTheOutbox = []fault{
	{
		name: "the broker refuses one message, which blocks its key", check: "failing", severity: admin.Critical,
		evidence: `blocked keys: 1[^0-9](?s:.*)` + regexp.QuoteMeta(errRefused.Error()), alert: "OutboxMessagesFailing",
		always: true,
		inject: func(n *night) {
			n.h.publish(n, "orders", "K", "poison", "behind it")
			n.older("20 minutes")
			n.forwards(classifyingConfig(), func(_ string, msg *message.Message) error {
				if string(msg.Payload) == "poison" {
					return errRefused
				}
				return nil
			})
			eventually(n, func() bool { return n.triedTimes("poison") > 3 }, "it fails")
			assert.NotContains(n, findings(n, n.h), "backlog", "messages behind it have the same cause")
		},
	},
	{
		name: "messages died of a broker that did not know the topic", check: "dead", severity: admin.Warning,
		evidence: `2 messages of the outbox are dead`, alert: "OutboxMessagesDead", always: true,
		did: "`outboxctl outbox requeue`, when the topic was there",
		inject: func(n *night) {
			n.h.publish(n, "orders", "", "1", "2")
			n.forwards(classifyingConfig(), func(string, *message.Message) error { return errMalformed })
			eventually(n, func() bool { return n.h.states(n, "true")["dead"] == 2 }, "both are dead")
		},
		cure: func(n *night, f admin.Finding) {
			n.answers(nil)
			order(n.T, n.h, f, "requeue", "--yes")
			n.arrives(n, "1", "2")
		},
	},
	{
		name: "the broker is down, for eight topics", check: "topic_unavailable", severity: admin.Critical,
		evidence: errDown.Error(), alert: "OutboxTopicUnavailable", did: "the broker was started", always: true,
		inject: func(n *night) {
			for i := range 8 {
				n.h.publish(n, fmt.Sprintf("topic-%d", i), "", "1")
			}
			n.forwards(classifyingConfig(), func(topic string, _ *message.Message) error {
				return fmt.Errorf("publish to %s: %w", topic, errDown)
			})
			eventually(n, func() bool {
				return n.h.count(n, "SELECT count(*) FROM outbox_topics") == 8
			}, "all are paused")
			n.h.exec(n, "UPDATE outbox_topics SET paused_at = now() - interval '6 minutes'")
			list, err := newAdmin(n, n.h).Doctor(n.Context())
			require.NoError(n, err)
			assert.Len(n, summary.Judge(list).Problems, 1, "one cause is one finding: %v", list)
		},
		cure: func(n *night, f admin.Finding) {
			assert.Contains(n, f.Cure, "resumes the topic on its own")
			n.answers(nil)
			n.arrives(n, "1")
		},
	},
	{
		name: "an operator paused a topic in the morning", check: "topic_paused", severity: admin.Warning,
		evidence: `paused topic "orders" 5h00m ago \(alice: until bob's back\)`, alert: "OutboxTopicPaused",
		inject: func(n *night) {
			n.forwards(classifyingConfig(), nil)
			require.NoError(n, newAdmin(n, n.h).Pause(n.Context(), "orders", "until bob's back"))
			n.h.publish(n, "orders", "K", "1")
			n.h.exec(n, "UPDATE outbox_topics SET paused_at = now() - interval '5 hours'")
			ails(n, n.h, "topic_paused")
			assert.NotContains(n, findings(n, n.h), "backlog", "one reason is enough")
		},
	},
	{
		name: "a pause was forgotten for 30 days, with 5,000 messages", check: "topic_paused", severity: admin.Critical,
		alert: "OutboxPauseForgotten",
		inject: func(n *night) {
			require.NoError(n, newAdmin(n, n.h).Pause(n.Context(), "orders", "deploy"))
			n.forwards(classifyingConfig(), nil) // it has read the pause
			n.h.exec(n, "UPDATE outbox_topics SET paused_at = now() - interval '30 days'")
			n.h.exec(n, "INSERT INTO outbox (uuid, topic, payload) SELECT i, 'orders', '' FROM generate_series(1, 5000) i")
		},
	},
	{
		name: "no forwarder runs", check: "forwarders", severity: admin.Critical, alert: "OutboxNoForwarder", always: true,
		did: "a forwarder was started",
		inject: func(n *night) {
			n.h.publish(n, "orders", "K", "1")
			n.older("3 minutes")
		},
		cure: func(n *night, _ admin.Finding) { n.forwards(classifyingConfig(), nil); n.arrives(n, "1") },
	},
	{
		name: "1,000 delayed messages are due for 2 h, and no forwarder has their topic", check: "topic_unread",
		severity: admin.Critical, alert: "OutboxTopicUnread", always: true, did: "a forwarder with the topic was started",
		inject: func(n *night) {
			n.forwards(only("orders"), nil)
			n.h.exec(n, `INSERT INTO outbox (uuid, topic, payload, created_at, due_at) SELECT i, 'letters', '',
				now() - interval '3 hours', now() - interval '2 hours' FROM generate_series(1, 1000) i`)
			f := ails(n, n.h, "topic_unread")
			assert.Regexp(n, `1000 messages of topic "letters" are ready, the oldest for 2h00m`, f.Evidence)
			assert.Contains(n, f.Cure, `add "letters" to forwarder.Config.Topics`)
		},
		cure: func(n *night, _ admin.Finding) {
			n.h.exec(n, "DELETE FROM outbox WHERE id > (SELECT min(id) + 20 FROM outbox)") // saves time
			cfg := only("letters")
			cfg.Scope = "letters"
			n.join(n, n.h, cfg)
		},
	},
	{
		name: "one of two services vanished with its only forwarder", check: "topic_unread", severity: admin.Critical,
		alert: "OutboxTopicUnread", did: "the service was started",
		inject: func(n *night) {
			n.forwards(only("orders"), nil)
			n.killed("billing", "letters")
			n.h.publish(n, "letters", "", "1")
			n.older("20 minutes")
		},
		cure: func(n *night, _ admin.Finding) {
			cfg := only("letters")
			cfg.Scope = "letters"
			n.join(n, n.h, cfg)
			n.arrives(n, "1")
		},
	},
	{
		name: "a service vanished with its forwarder and its metrics", check: "forwarders", severity: admin.Critical,
		evidence: `the lease of forwarder "worker-1-pgx" \(scope default\) expired`, alert: "OutboxVanished", gone: true,
		did: "the service was started",
		inject: func(n *night) {
			n.killed("")
			n.h.publish(n, "orders", "", "1")
			n.older("20 minutes")
		},
		cure: func(n *night, _ admin.Finding) { n.forwards(classifyingConfig(), nil); n.arrives(n, "1") },
	},
	{
		name: "one of two forwarders was killed", check: "forwarder_vanished", severity: admin.Info, always: true,
		inject: func(n *night) { n.forwards(classifyingConfig(), nil); n.killed("") },
	},
	{
		name: "a publisher is too slow for the writers", check: "backlog", severity: admin.Critical,
		alert: "OutboxMessagesLate", did: "Concurrency was raised", inject: func(n *night) {
			n.h.exec(n, `INSERT INTO outbox (uuid, topic, payload, created_at)
				SELECT i, 'orders', '', now() - interval '20 minutes' FROM generate_series(1, 2000) i`)
			cfg := classifyingConfig()
			cfg.Concurrency = 1
			n.forwards(cfg, slowly(nil))
		},
		cure: func(n *night, f admin.Finding) {
			assert.Contains(n, f.Cure, "raise forwarder.Config.Concurrency")
			require.NoError(n, n.Forwarder.Close())
			cfg := classifyingConfig()
			cfg.Concurrency = 256
			n.join(n, n.h, cfg)
		},
	},
	{
		name: "60,000 messages have one key", check: "backlog", severity: admin.Critical, alert: "OutboxMessagesLate",
		did: "publishing of that key was made faster", inject: func(n *night) {
			n.h.exec(n, `INSERT INTO outbox (uuid, topic, key, payload, created_at)
				SELECT i, 'orders', CASE WHEN i % 20 = 0 THEN 'key-' || i ELSE 'tenant 7' END, '', now() - interval '20 minutes'
				  FROM generate_series(1, 60000) i`)
			n.fast.Store(false)
			n.forwards(classifyingConfig(), slowly(&n.fast))
			f := ails(n, n.h, "backlog")
			assert.Contains(n, f.Cure, `make publishing of key "tenant 7" faster`)
			assert.NotContains(n, f.Cure, "run more forwarders")
		},
		cure: func(n *night, _ admin.Finding) {
			n.h.exec(n, "DELETE FROM outbox WHERE id > (SELECT min(id) + 500 FROM outbox WHERE published_at IS NULL)")
			n.fast.Store(true)
		},
	},
	{
		name: "forwarders with overlapping topics wait for each other", check: "forwarder_waits", severity: admin.Warning,
		always: true, did: "the old forwarder was stopped", inject: func(n *night) {
			n.forwards(only("orders", "bills"), nil)
			other, err := forwarder.New(n.h.db, n.fakeBroker, only("letters", "bills"), nil)
			require.NoError(n, err)
			ended := make(chan error, 1)
			go func() { ended <- other.Run(context.Background()) }()
			n.Cleanup(func() {
				assert.NoError(n, other.Close())
				assert.NoError(n, <-ended)
			})
			eventually(n, func() bool {
				return n.h.exec(n, "UPDATE outbox_forwarders SET waiting_since = now() - interval '2 minutes' "+
					"WHERE waiting_since IS NOT NULL") == 1
			}, "it waits")
		},
		cure: func(n *night, f admin.Finding) {
			assert.Contains(n, f.Cure, "stop those")
			require.NoError(n, n.Forwarder.Close())
		},
	},
	{
		name: "no forwarder deletes old messages", check: "retention", severity: admin.Warning,
		evidence: "no running forwarder deletes them", did: "`outboxctl clean`", inject: func(n *night) {
			n.h.exec(n, `INSERT INTO outbox (uuid, topic, payload, created_at, published_at)
				VALUES ('u', 'orders', '', now() - interval '9 days', now() - interval '9 days')`)
		},
		cure: func(n *night, f admin.Finding) {
			assert.Contains(n, f.Cure, "admin.Clean with OutboxRetention 168h0m0s")
			order(n.T, n.h, f, "clean", "--yes")
		},
	},
	{
		name: "forwarders delete only messages that they publish", check: "retention", severity: admin.Warning,
		evidence: `the running forwarders delete only messages that they publish themselves \(Retention -1\)`,
		did:      "`outboxctl clean`", inject: func(n *night) {
			n.h.exec(n, `INSERT INTO outbox (uuid, topic, payload, created_at, published_at)
				VALUES ('u', 'orders', '', now() - interval '9 days', now() - interval '9 days')`)
			cfg := classifyingConfig()
			cfg.Retention = -1
			n.forwards(cfg, nil)
			eventually(n, func() bool {
				return !strings.Contains(ails(n, n.h, "retention").Evidence, "no running forwarder")
			}, "it is running")
		},
		cure: func(n *night, f admin.Finding) {
			require.NoError(n, n.Forwarder.Close()) // it deletes published messages, which changes the text
			order(n.T, n.h, f, "clean", "--yes")
		},
	},
}

// faultsOfPartitions are faults of a partitioned outbox.
var faultsOfPartitions = []fault{
	{
		name: "nothing maintains the partitions, and the default has taken 200 messages", check: "partitions_ahead",
		severity: admin.Critical, alert: "OutboxNoPartitionAhead", did: "`outboxctl partitions maintain`",
		inject: func(n *night) {
			intoPartitions(n, n.h, 100, 200)
			n.forwards(classifyingConfig(), nil)
			n.h.writeRows(n, 400, "published_at = now()")
		},
		cure: func(n *night, f admin.Finding) { maintainAs(n.T, n.h, f) },
	},
}

// slowly is a publisher that takes 100 ms per message until fast is true.
func slowly(fast *atomic.Bool) func(string, *message.Message) error {
	return func(string, *message.Message) error {
		if fast == nil || !fast.Load() {
			<-time.After(100 * time.Millisecond)
		}
		return nil
	}
}
