//go:build unix

package integration_test

import (
	"slices"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	asked "github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/publisher/nats"
)

// reads has Doctor ask a server of NATS.
func (n *night) reads(url string) {
	n.Helper()
	reader, err := nats.NewTopicReader(nats.TopicReaderConfig{URL: url}, nil)
	require.NoError(n, err)
	n.Cleanup(func() { require.NoError(n, reader.Close()) })
	n.brokers = []asked.Checker{reader}
}

// parks has a service park the keys of a topic of Kafka that fail, until mend is called.
func (n *night) parks() (w *inboundWorld, service *inboundService, serve func()) {
	n.Helper()
	w = newInboundWorld(n, 1)
	n.h = w.h
	w.send(500, 20)
	c, mend := w.parks()
	n.mend = mend
	serve = func() { service = w.serve(c, failsUntilMended(w.h)) }
	serve()
	eventually(n, func() bool {
		keys, err := newAdmin(n, n.h).ParkedKeys(n.Context())
		require.NoError(n, err)
		return len(keys) > 0 && !slices.ContainsFunc(keys, func(k admin.ParkedKey) bool { return k.Attempts == 0 })
	}, "the keys are parked and retried")
	return w, service, serve
}

// leave waits until nothing is parked any more.
func (n *night) leave() {
	n.Helper()
	eventually(n, func() bool {
		return n.h.count(n, "SELECT count(*) FROM outbox_parked WHERE published_at IS NULL") == 0
	}, "the keys leave")
}

var faultsOfTheBroker = []fault{
	{
		name: "the inbox forgets after a day, and JetStream keeps messages for two", check: "inbox_retention",
		severity: admin.Warning, always: true, did: "`max_age` of the stream was lowered", inject: func(n *night) {
			url := natsServer(n).URL()
			kept := natsgo.StreamConfig{Storage: natsgo.FileStorage, MaxAge: 48 * time.Hour}
			js, stream, prefix := natsStream(n, url, func(c *natsgo.StreamConfig) { c.MaxAge = kept.MaxAge })
			n.reads(url)
			cfg := classifyingConfig()
			cfg.InboxRetention = 24 * time.Hour
			n.forwards(cfg, nil)
			(*core.DB)(n.h.db).Consumes("shop/book", prefix+"orders")
			n.mend = func() {
				kept.Name, kept.Subjects, kept.MaxAge = stream, []string{stream + ".>"}, time.Hour
				_, err := js.UpdateStream(&kept)
				require.NoError(n, err)
			}
		},
		cure: func(n *night, _ admin.Finding) { n.mend() },
	},
	{
		name: "messages are published to a stream in memory", check: "broker", severity: admin.Critical, always: true,
		did: "the stream was made again with file storage", inject: func(n *night) {
			url := natsServer(n).URL()
			js, stream, prefix := natsStream(n, url, func(c *natsgo.StreamConfig) { c.Storage = natsgo.MemoryStorage })
			n.reads(url)
			n.h.publish(n, prefix+"orders", "", "1")
			runInBackground(n, newForwarder(n, n.h, natsPublisher(n, url), forwarder.Config{}))
			eventually(n, func() bool { return natsStored(n, js, stream) == 1 }, "it is published")
			n.mend = func() {
				require.NoError(n, js.DeleteStream(stream))
				_, err := js.AddStream(&natsgo.StreamConfig{
					Name: stream, Subjects: []string{stream + ".>"}, Storage: natsgo.FileStorage,
				})
				require.NoError(n, err)
			}
		},
		cure: func(n *night, _ admin.Finding) { n.mend() },
	},
	{
		name: "a handler has failed for three keys of Kafka, which are parked for 15 minutes", check: "parked",
		severity: admin.Warning, alert: "KeysParked", did: "the handler was corrected", inject: func(n *night) {
			n.parks()
			n.h.exec(n, "UPDATE outbox_parked SET created_at = created_at - interval '15 minutes'")
		},
		cure: func(n *night, _ admin.Finding) { n.mend(); n.leave() },
	},
	{
		name: "keys are parked, and the service that parked them was stopped", check: "parked_undelivered",
		severity: admin.Critical, alert: "ParkedUndelivered", did: "the service was started, with a correct handler",
		inject: func(n *night) {
			_, service, serve := n.parks()
			service.close()
			n.h.exec(n, "UPDATE outbox_parked SET created_at = created_at - interval '1 hour'")
			mend := n.mend
			n.mend = func() { mend(); serve() }
		},
		cure: func(n *night, _ admin.Finding) { n.mend(); n.leave() },
	},
}
