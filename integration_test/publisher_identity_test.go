package integration_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
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

// identity is a message's identity at one station. docs/reference/identity.md promises that it is the same at all
// stations.
type identity struct{ uuid, key, topic, payload string }

// identities has one row for each station of each message.
type identities struct {
	mu   sync.Mutex
	seen map[string]map[string]identity // by message and station
}

func (i *identities) record(name, station string, id identity) {
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

// identityBroker is the test's view of a broker.
type identityBroker struct {
	pub        message.Publisher
	subscriber func(group string) message.Subscriber
	topic      string // topic for the outbox
	subscribed string
	dead       string
	passed     string                    // topic for publishing without the outbox
	null       string                    // payload with which null arrives
	foreign    func(key, payload string) // writes a record as another producer would
	foreignKey string
}

// TestIdentity sends messages through every way out and back, and prints their identity at each station.
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
			passed: kafkaTopic(t, server, 1, nil), null: "null",
			subscriber: func(group string) message.Subscriber {
				sub, err := kafka.NewSubscriber(kafka.SubscriberConfig{SubscriberConfig: wmkafka.SubscriberConfig{
					Brokers: server.Brokers(), ConsumerGroup: group, Unmarshaler: wmkafka.DefaultMarshaler{},
				}}, nil)
				require.NoError(t, err)
				return sub
			},
			foreign: func(key, payload string) {
				settings := sarama.NewConfig()
				settings.Producer.Return.Successes = true
				producer, err := sarama.NewSyncProducer(server.Brokers(), settings)
				require.NoError(t, err)
				defer producer.Close()
				_, _, err = producer.SendMessage(&sarama.ProducerMessage{
					Topic: topic, Key: sarama.ByteEncoder(core.RecordKey(key)), Value: sarama.StringEncoder(payload),
				})
				require.NoError(t, err)
			},
		})
	})
	t.Run("without a broker", func(t *testing.T) {
		t.Parallel()
		identityTables(t, newPgxHandle(t, newMigratedDatabase(t)))
	})
	t.Run("nats", func(t *testing.T) {
		t.Parallel()
		url := natsServer(t).URL()
		js, _, prefix := natsStream(t, url, nil)
		checkIdentity(t, identityBroker{
			pub: natsPublisher(t, url), topic: prefix + "orders.eu", subscribed: prefix + "orders.*", dead: prefix + "dead",
			foreignKey: "customer-7", passed: prefix + "passed", null: "empty",
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

// identityMessages returns messages with the identity that each must keep.
func identityMessages() map[string]identityMessage {
	messages := map[string]identityMessage{}
	add := func(name, uuid, key, payload string, change func(*message.Message)) {
		msg := message.NewMessage(cmp.Or(uuid, watermill.NewUUID()), []byte(payload))
		change(msg)
		messages[name] = identityMessage{msg, identity{msg.UUID, key, "", payloadOf(msg.Payload)}}
	}
	add("keyed", "", "order/1", "keyed", func(m *message.Message) { outbox.SetKey(m, "order/1") })
	add("aggregate", "", "order/2", "aggregate", func(m *message.Message) { outbox.SetAggregate(m, "order", "2") })
	add("without key", "", "", "without key", func(*message.Message) {})
	add("odd UUID and key", "u6\nx", " ", "odd", func(m *message.Message) { outbox.SetKey(m, " ") })
	add("empty", "", "gone", "", func(m *message.Message) { outbox.SetKey(m, "gone") })
	add("null", "", "gone", "", func(m *message.Message) { outbox.SetKey(m, "gone"); m.Payload = nil })
	return messages
}

type identityMessage struct {
	msg  *message.Message // nil: written by another producer, without a UUID
	want identity
}

func checkIdentity(t *testing.T, b identityBroker) {
	h := newPgxHandle(t, newMigratedDatabase(t))
	messages := identityMessages()
	messages["foreign"] = identityMessage{nil, identity{"", b.foreignKey, b.topic, "foreign"}}
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
			table.record(name, station, identity{
				msg.UUID, core.ConsumedKey(msg), core.ConsumedFrom(msg.Context()).Topic, payloadOf(msg.Payload),
			})
			return name
		}
	}

	// In: a handler that fails until the message is redriven, and Ingest.
	events, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	identify := func(msg *message.Message) (string, error) { return cmp.Or(msg.UUID, string(msg.Payload)), nil }
	stack, err := middleware.Stack(events, middleware.StackConfig{
		Service: "booking", ErrorHandler: middleware.ErrorHandlerConfig{DeadLetterTopic: b.dead},
		Inbox: middleware.InboxConfig{Key: identify},
	}, nil)
	require.NoError(t, err)
	first, again, stored := consumed("consumed"), consumed("redriven"), consumed("stored")
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, nil)
	require.NoError(t, err)
	router.AddConsumerHandler("book", b.subscribed, b.subscriber("book"), func(msg *message.Message) error {
		if msg.Metadata.Get("outbox_redriven") != "" {
			again(msg)
			return nil
		}
		first(msg)
		return outbox.Poison(errHandler)
	}).AddMiddleware(stack...)
	ingest, err := queue.Ingest(storeOn(t, h, queue.StoreConfig{}), queue.IngestConfig{
		Item: func(msg *message.Message) (queue.Item, error) {
			id, _ := identify(msg)
			if msg.Metadata.Get("outbox_redriven") != "" {
				return queue.Item{}, queue.ErrIgnore
			}
			stored(msg)
			return queue.Item{
				ID: queue.ID{Source: "orders", MessageID: id}, Topic: core.ConsumedFrom(msg.Context()).Topic,
				Key: core.ConsumedKey(msg), Payload: msg.Payload, Metadata: msg.Metadata,
			}, nil
		},
	})
	require.NoError(t, err)
	router.AddConsumerHandler("ingest", b.subscribed, b.subscriber("ingest"), ingest)
	past := consumed("passed through")
	router.AddConsumerHandler("past", b.passed, b.subscriber("past"), func(msg *message.Message) error {
		past(msg)
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	t.Cleanup(func() { require.NoError(t, router.Close()); require.NoError(t, <-ended) })
	<-router.Running()

	// Out: through the outbox, and one from another producer.
	runForwarder(t, h, b.pub, quickConfig(), nil)
	passing := decorated(t, h, outbox.PublisherConfig{WithoutTx: outbox.PassThrough}, b.pub)
	for _, m := range messages {
		if m.msg != nil {
			require.NoError(t, events.Publish(b.topic, m.msg.Copy()))
			require.NoError(t, passing.Publish(b.passed, m.msg.Copy()))
		}
	}
	b.foreign(b.foreignKey, "foreign")
	all := func(station string) func() bool {
		return func() bool {
			for name, m := range messages {
				if !table.has(name, station) && (m.msg != nil || station != "passed through") {
					return false
				}
			}
			return true
		}
	}
	require.Eventually(t, all("consumed"), 2*patience, 20*time.Millisecond)
	require.Eventually(t, all("stored"), 2*patience, 20*time.Millisecond)
	require.Eventually(t, all("passed through"), 2*patience, 20*time.Millisecond)
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
			table.record(name, station, identity{f[0], f[1], f[2], f[3]})
		}
	}
	shown := `coalesce(case when octet_length(payload) = 0 then 'empty' end, convert_from(payload, 'UTF8'), 'null')`
	rows("outbox", `select concat_ws('|', uuid, key, topic, `+shown+`) from outbox where topic = '`+b.topic+`'`)
	rows("dead letter", `select concat_ws('|', metadata->>'uuid_poisoned', key, metadata->>'topic_poisoned', `+shown+`)
		from outbox where topic = '`+b.dead+`'`)
	rows("queue row", `select concat_ws('|', case message_id when 'foreign' then '' else message_id end, key, topic, `+shown+`)
		from inbox_queue`)

	// The queue's handlers see messages stored by Ingest under a UUID that Item chose.
	handled := func(station string, msg *message.Message) {
		name := nameOf(strings.Replace(msg.UUID, "foreign", "", 1), string(msg.Payload))
		table.record(name, station, identity{
			strings.Replace(msg.UUID, "foreign", "", 1), core.ConsumedKey(msg), b.topic, payloadOf(msg.Payload),
		})
	}
	jobs, err := subscriberOn(t, storeOn(t, h, queue.StoreConfig{}), quickSubscriber()).Subscribe(t.Context(), b.topic)
	require.NoError(t, err)
	for range messages {
		msg := receive(t, jobs)
		handled("queue.Subscriber", msg)
		msg.Ack()
	}

	r, err := newAdmin(t, h).Redrive(t.Context(), admin.Action{Filter: admin.Filter{In: admin.Inbox, All: true},
		Reason: "test"})
	require.NoError(t, err)
	require.EqualValues(t, len(messages), r.Touched)
	require.Eventually(t, all("redriven"), 2*patience, 20*time.Millisecond)

	table.check(t, []string{
		"outbox", "consumed", "passed through", "stored", "dead letter", "queue row", "queue.Subscriber", "redriven",
	}, func(name, station string, got identity) identity {
		want := messages[name].want
		want.topic = b.topic
		switch {
		case name == "foreign" && station == "redriven":
			want.uuid = got.uuid // the dead letter's UUID
		case name == "foreign" && (station == "passed through" || station == "outbox"):
			return got
		case station == "passed through":
			want.topic = b.passed
		}
		if want.payload == "null" && station != "outbox" {
			want.payload = b.null
		}
		return want
	})
}

// check prints the table and compares each cell.
func (i *identities) check(t *testing.T, stations []string, want func(name, station string, got identity) identity) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "message\tstation\tUUID\tkey\ttopic\tpayload")
	for _, name := range slices.Sorted(maps.Keys(i.seen)) {
		for _, station := range stations {
			got := i.seen[name][station]
			fmt.Fprintf(w, "%s\t%s\t%q\t%q\t%s\t%s\n", name, station, got.uuid, got.key, got.topic, got.payload)
			assert.Equal(t, want(name, station, got), got, "%s: %s", name, station)
		}
	}
	require.NoError(t, w.Flush())
	t.Log("\n" + text.String())
}

// identityTables checks the stations that need no broker: a subscriber of the outbox, and a message that the broker
// refuses until it is requeued.
func identityTables(t *testing.T, h handle) {
	messages := identityMessages()
	table := &identities{seen: map[string]map[string]identity{}}
	nameOf := func(uuid string) string {
		for name, m := range messages {
			if m.msg.UUID == uuid {
				return name
			}
		}
		return "unknown " + uuid
	}
	record := func(station, topic string, msg *message.Message) {
		key, err := core.KeyOf(msg)
		require.NoError(t, err)
		table.record(nameOf(msg.UUID), station, identity{msg.UUID, key, topic, payloadOf(msg.Payload)})
	}
	events, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	publish := func(topic string) {
		for _, m := range messages {
			require.NoError(t, events.Publish(topic, m.msg.Copy()))
		}
	}
	publish("local")
	local, err := newSubscriber(t, h, quickConfig()).Subscribe(t.Context(), "local")
	require.NoError(t, err)
	for range messages {
		msg := receive(t, local)
		record("forwarder.Subscriber", "local", msg)
		msg.Ack()
	}

	publish("remote")
	var refused atomic.Bool
	refused.Store(true)
	sent := make(chan *message.Message, 2*len(messages))
	cfg := quickConfig()
	cfg.Topics, cfg.DeadLetterTopic = []string{"letters", "remote"}, "letters"
	cfg.Classify = func(error) forwarder.Verdict { return forwarder.Permanent }
	runForwarder(t, h, publisherFunc(func(topic string, msg *message.Message) error {
		if topic == "remote" && refused.Load() {
			return errHandler
		}
		msg.Metadata.Set("sent to", topic)
		sent <- msg
		return nil
	}), cfg, nil)
	for range messages {
		deadLetter := receive(t, sent)
		deadLetter.UUID = deadLetter.Metadata.Get("uuid_poisoned")
		record("the forwarder's dead letter", deadLetter.Metadata.Get(wmiddleware.PoisonedTopicKey), deadLetter)
	}
	refused.Store(false)
	r, err := newAdmin(t, h).Requeue(t.Context(), admin.Action{Filter: admin.Filter{Topic: "remote"}, Reason: "test"})
	require.NoError(t, err)
	require.EqualValues(t, len(messages), r.Touched)
	for range messages {
		msg := receive(t, sent)
		record("requeued", msg.Metadata.Get("sent to"), msg)
	}
	table.check(t, []string{"forwarder.Subscriber", "the forwarder's dead letter", "requeued"},
		func(name, station string, _ identity) identity {
			want := messages[name].want
			if want.topic = "remote"; station == "forwarder.Subscriber" {
				want.topic = "local"
			}
			return want
		})
}

// TestNullStaysNull with each driver, next to payloads that are empty or too large to be read with their rows.
func TestNullStaysNull(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		payloads := [][]byte{nil, {}, []byte("text"), nil}
		events, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
		require.NoError(t, err)
		store := storeOn(t, h, queue.StoreConfig{HashContent: true})
		jobs := make([]queue.Item, len(payloads))
		for i, payload := range payloads {
			msg := newMessage("orders")
			msg.Payload = payload
			if i == len(payloads)-1 {
				msg.Metadata.Set("large", strings.Repeat("x", 200<<10))
			}
			require.NoError(t, events.Publish("orders", msg))
			jobs[i] = queue.Item{
				ID: queue.ID{Source: "orders", MessageID: fmt.Sprint(i)}, Topic: "orders", Key: "one by one", Payload: payload,
				Metadata: msg.Metadata,
			}
		}
		storeAll(t, store, jobs...)
		again, other := jobs[0], jobs[0]
		other.Payload = []byte{}
		result, err := store.Enqueue(t.Context(), again)
		require.NoError(t, err)
		assert.False(t, result[0].Mismatch)
		result, err = store.Enqueue(t.Context(), other)
		require.NoError(t, err)
		assert.True(t, result[0].Mismatch, "empty for null")
		storeAll(t, store, again)

		fromOutbox, err := newSubscriber(t, h, quickConfig()).Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		fromQueue, err := subscriberOn(t, store, quickSubscriber()).Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		for name, from := range map[string]<-chan *message.Message{"outbox": fromOutbox, "queue": fromQueue} {
			var got []string
			for range payloads {
				msg := receive(t, from)
				got = append(got, payloadOf(msg.Payload))
				msg.Ack()
			}
			assert.ElementsMatch(t, []string{"null", "empty", "text", "null"}, got, name)
		}
	})
}
