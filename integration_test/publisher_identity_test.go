package integration_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/kafka"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/nats"
	"github.com/millrace-go/watermill-outbox/queue"
)

// identity is who a message is at a station. docs/reference/identity.md says that it is the same at all of them.
type identity struct{ uuid, key, topic, payload string }

// identities has a row for each station of each message.
type identities struct {
	mu   sync.Mutex
	seen map[string]map[string]identity // by message and station
}

func (i *identities) note(name, station string, id identity) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.seen[name] == nil {
		i.seen[name] = map[string]identity{}
	}
	i.seen[name][station] = id
}

func (i *identities) has(name, station string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, found := i.seen[name][station]
	return found
}

// identityBroker is what the test needs of a broker.
type identityBroker struct {
	pub        message.Publisher
	subscriber func(group string) message.Subscriber
	topic      string // published to
	subscribed string
	dead       string
	foreign    func(key, payload string) // writes a record as another producer does
	foreignKey string
}

// TestIdentity sends messages through every way out and back, and prints who they are at each station.
func TestIdentity(t *testing.T) {
	t.Parallel()
	t.Run("kafka", func(t *testing.T) {
		t.Parallel()
		server := kafkaServer(t)
		topic := kafkaTopic(t, server, 2, nil)
		pub, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: server.Brokers()}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, pub.Close()) })
		checkIdentity(t, identityBroker{
			pub: pub, topic: topic, subscribed: topic, dead: kafkaTopic(t, server, 1, nil), foreignKey: "%%25%00%2A",
			subscriber: func(group string) message.Subscriber {
				sub, err := kafka.NewSubscriber(kafka.SubscriberConfig{SubscriberConfig: wmkafka.SubscriberConfig{
					Brokers: server.Brokers(), ConsumerGroup: group, Unmarshaler: wmkafka.DefaultMarshaler{},
				}}, nil)
				require.NoError(t, err)
				return sub
			},
			foreign: func(key, payload string) {
				producer, err := sarama.NewSyncProducer(server.Brokers(), kafka.DefaultSaramaPublisherConfig())
				require.NoError(t, err)
				defer producer.Close()
				_, _, err = producer.SendMessage(&sarama.ProducerMessage{
					Topic: topic, Key: sarama.ByteEncoder(core.RecordKey(key)), Value: sarama.StringEncoder(payload),
				})
				require.NoError(t, err)
			},
		})
	})
	t.Run("nats", func(t *testing.T) {
		t.Parallel()
		url := natsServer(t).URL()
		js, _, prefix := natsStream(t, url, nil)
		checkIdentity(t, identityBroker{
			pub: natsPublisher(t, url), topic: prefix + "orders.eu", subscribed: prefix + "orders.*", dead: prefix + "dead",
			foreignKey: "customer-7",
			subscriber: func(group string) message.Subscriber {
				sub, err := nats.NewSubscriber(nats.SubscriberConfig{URL: url, Consumer: group}, nil)
				require.NoError(t, err)
				return sub
			},
			foreign: func(key, payload string) {
				msg := natsgo.NewMsg(prefix + "orders.eu")
				msg.Header.Set(outbox.MetadataKey, key)
				msg.Data = []byte(payload)
				_, err := js.PublishMsg(msg)
				require.NoError(t, err)
			},
		})
	})
}

func payloadOf(b []byte) string {
	switch {
	case b == nil:
		return "null"
	case len(b) == 0:
		return "empty"
	}
	return string(b)
}

func checkIdentity(t *testing.T, b identityBroker) {
	h := newPgxHandle(t, newMigratedDatabase(t))
	type sent struct {
		msg  *message.Message
		want identity
	}
	messages := map[string]sent{}
	add := func(name, uuid, key, payload string, change func(*message.Message)) {
		msg := message.NewMessage(cmp.Or(uuid, watermill.NewUUID()), []byte(payload))
		change(msg)
		messages[name] = sent{msg, identity{msg.UUID, key, b.topic, cmp.Or(payload, "empty")}}
	}
	add("keyed", "", "order/1", "keyed", func(m *message.Message) { outbox.SetKey(m, "order/1") })
	add("aggregate", "", "order/2", "aggregate", func(m *message.Message) { outbox.SetAggregate(m, "order", "2") })
	add("without key", "", "", "without key", func(*message.Message) {})
	add("odd UUID and key", "u6\nx", " ", "odd", func(m *message.Message) { outbox.SetKey(m, " ") })
	add("null", "", "gone", "", func(m *message.Message) { outbox.SetKey(m, "gone"); m.Payload = nil })
	messages["foreign"] = sent{nil, identity{"", b.foreignKey, b.topic, "foreign"}}
	nameOf := func(uuid, payload string) string {
		for name, m := range messages {
			if m.msg != nil && m.msg.UUID == uuid || m.msg == nil && m.want.payload == payload {
				return name
			}
		}
		return "unknown " + uuid
	}
	table := &identities{seen: map[string]map[string]identity{}}
	consumed := func(station string) func(msg *message.Message) string {
		return func(msg *message.Message) string {
			name := nameOf(msg.UUID, string(msg.Payload))
			table.note(name, station, identity{
				msg.UUID, core.ConsumedKey(msg), core.ConsumedFrom(msg.Context()).Topic, payloadOf(msg.Payload),
			})
			return name
		}
	}

	// In: a handler that fails until the message was redriven, and Ingest.
	events, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	identify := func(msg *message.Message) (string, error) { return cmp.Or(msg.UUID, string(msg.Payload)), nil }
	stack, err := middleware.Stack(events, middleware.StackConfig{
		Service: "booking", Outcomes: middleware.OutcomesConfig{DeadLetterTopic: b.dead}, Inbox: middleware.InboxConfig{Key: identify},
	}, nil)
	require.NoError(t, err)
	first, again, stored := consumed("consumed"), consumed("redriven"), consumed("stored")
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, nil)
	require.NoError(t, err)
	router.AddConsumerHandler("book", b.subscribed, b.subscriber("book"), func(msg *message.Message) error {
		if msg.Metadata.Get(outbox.MetadataRedriven) != "" {
			again(msg)
			return nil
		}
		first(msg)
		return outbox.Poison(errHandler)
	}).AddMiddleware(stack...)
	ingest, err := queue.Ingest(newStore(t, h, queue.StoreConfig{}), queue.IngestConfig{
		Item: func(msg *message.Message) (queue.Item, error) {
			id, _ := identify(msg)
			if msg.Metadata.Get(outbox.MetadataRedriven) != "" {
				return queue.Item{}, queue.ErrIgnore
			}
			stored(msg)
			return queue.Item{
				ID: queue.ID{Source: "orders", MessageID: id}, Topic: core.ConsumedFrom(msg.Context()).Topic,
				Key: core.ConsumedKey(msg), Payload: msg.Payload, Metadata: msg.Metadata,
			}, nil
		},
	}, nil)
	require.NoError(t, err)
	router.AddConsumerHandler("ingest", b.subscribed, b.subscriber("ingest"), ingest)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	t.Cleanup(func() { require.NoError(t, router.Close()); require.NoError(t, <-ended) })
	<-router.Running()

	// Out: through the outbox, and one from elsewhere.
	fwd, err := forwarder.New(h.db, b.pub, quickConfig(), nil)
	require.NoError(t, err)
	runInBackground(t, fwd)
	for _, m := range messages {
		if m.msg != nil {
			require.NoError(t, events.Publish(b.topic, m.msg.Copy()))
		}
	}
	b.foreign(b.foreignKey, "foreign")
	all := func(station string) func() bool {
		return func() bool {
			for name := range messages {
				if !table.has(name, station) {
					return false
				}
			}
			return true
		}
	}
	require.Eventually(t, all("consumed"), 2*patience, 20*time.Millisecond)
	require.Eventually(t, all("stored"), 2*patience, 20*time.Millisecond)
	require.Eventually(t, func() bool {
		return h.count(t, `select count(*) from outbox where topic = '`+b.dead+`'`) == len(messages)
	}, patience, 20*time.Millisecond)
	require.Eventually(t, func() bool { return h.count(t, `select count(*) from inbox_queue`) == len(messages) },
		patience, 20*time.Millisecond)

	// The tables.
	rows := func(station, query string) {
		for _, row := range column[string](t, h, query) {
			f := strings.Split(row, "|")
			name := nameOf(f[0], f[3])
			table.note(name, station, identity{f[0], f[1], f[2], f[3]})
		}
	}
	shown := `coalesce(case when octet_length(payload) = 0 then 'empty' end, convert_from(payload, 'UTF8'), 'null')`
	rows("dead letter", `select concat_ws('|', metadata->>'uuid_poisoned', key, metadata->>'topic_poisoned', `+shown+`)
		from outbox where topic = '`+b.dead+`'`)
	rows("queue row", `select concat_ws('|', case message_id when 'foreign' then '' else message_id end, key, topic, `+shown+`)
		from inbox_queue`)
	r, err := newAdmin(t, h).Redrive(t.Context(), admin.Act{Filter: admin.Filter{In: admin.Inbox, All: true}, Reason: "test"})
	require.NoError(t, err)
	require.EqualValues(t, len(messages), r.Touched)
	delete(messages, "foreign") // it has the UUID of its letter now
	foreign := identity{"", b.foreignKey, b.topic, "foreign"}
	messages["foreign"] = sent{nil, foreign}
	require.Eventually(t, all("redriven"), 2*patience, 20*time.Millisecond)

	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "message\tstation\tUUID\tkey\ttopic\tpayload")
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range table.seen {
			if !yield(name) {
				return
			}
		}
	}) {
		for _, station := range []string{"consumed", "stored", "dead letter", "queue row", "redriven"} {
			got := table.seen[name][station]
			fmt.Fprintf(w, "%s\t%s\t%q\t%q\t%s\t%s\n", name, station, got.uuid, got.key, got.topic, got.payload)
			want := messages[name].want
			if name == "foreign" && station == "redriven" {
				want.uuid = got.uuid // that of its dead letter
			}
			assert.Equal(t, want, got, "%s: %s", name, station)
		}
	}
	require.NoError(t, w.Flush())
	t.Log("\n" + text.String())
}
