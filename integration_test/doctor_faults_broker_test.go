//go:build unix

package integration_test

import (
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	asked "github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/nats"
)

// reads has Doctor ask a server of NATS.
func (n *night) reads(url string) {
	n.Helper()
	reader, err := nats.NewTopicReader(nats.TopicReaderConfig{URL: url}, nil)
	require.NoError(n, err)
	n.Cleanup(func() { require.NoError(n, reader.Close()) })
	n.brokers = []asked.Checker{reader}
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
			(*core.DB)(n.h.db).Consumes("shop/book", prefix+"orders") // which the forwarder writes down when it starts
			n.forwards(cfg, nil)
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
}
