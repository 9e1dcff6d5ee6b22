package main

import (
	"context"
	"fmt"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/watermill-outbox/examples/demo"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

// broker is the demo's own access to JetStream: it sends orders, reads stored messages back, and stops the server. It
// shares no code with the library.
type broker struct {
	server   *services.NATS
	conn     *natsgo.Conn
	js       jetstream.JetStream
	consumer string
}

var _ demo.Broker = (*broker)(nil)

func startBroker(ctx context.Context, opts services.Options) (demo.Broker, error) {
	server, err := services.StartNATS(ctx, opts)
	if err != nil {
		return nil, err
	}
	conn, err := natsgo.Connect(server.URL(), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	return &broker{server: server, conn: conn, js: js}, nil
}

func (b *broker) Address() string { return b.server.URL() }

// Provision makes a stream for each topic and the consumer for the service. If the subscriber made the consumer, it
// would delete it when it unsubscribes, and the position with it.
func (b *broker) Provision(ctx context.Context, at demo.Addresses) error {
	b.consumer = at.Consumer
	for _, topic := range []string{at.Orders, at.Bookings} {
		_, err := b.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew,
		})
		if err != nil {
			return fmt.Errorf("create stream %s: %w", topic, err)
		}
	}
	_, err := b.js.CreatePushConsumer(ctx, at.Orders, jetstream.ConsumerConfig{
		Durable:        at.Consumer,
		DeliverGroup:   at.Consumer,
		DeliverSubject: natsgo.NewInbox(),
		FilterSubject:  at.Orders,
		AckPolicy:      jetstream.AckExplicitPolicy,
		AckWait:        5 * time.Second, // after this time, an order whose ack was lost is redelivered
		MaxAckPending:  256,             // no more than can be handled within AckWait
	})
	if err != nil {
		return fmt.Errorf("create consumer: %w", err)
	}
	return nil
}

// Send gives each copy of an order its own Nats-Msg-Id: otherwise JetStream would drop the second copy as a duplicate.
func (b *broker) Send(ctx context.Context, topic string, copies []demo.Copy) error {
	var group errgroup.Group
	group.SetLimit(16)
	for _, c := range copies {
		group.Go(func() error {
			msg := natsgo.NewMsg(topic)
			msg.Header.Set(wmnats.WatermillUUIDHdr, c.UUID)
			msg.Data = c.Payload
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			_, err := b.js.PublishMsg(ctx, msg, jetstream.WithMsgID(fmt.Sprintf("%s/%d", c.UUID, c.Number)))
			return err
		})
	}
	return group.Wait()
}

func (b *broker) Consumed(ctx context.Context, topic string) (bool, error) {
	c, err := b.js.PushConsumer(ctx, topic, b.consumer)
	if err != nil {
		return false, err
	}
	info := c.CachedInfo()
	return info.NumPending == 0 && info.NumAckPending == 0, nil
}

func (b *broker) Read(ctx context.Context, topic string) ([]demo.Stored, error) {
	stream, err := b.js.Stream(ctx, topic)
	if err != nil {
		return nil, err
	}
	count := int(stream.CachedInfo().State.Msgs)
	if count == 0 {
		return nil, nil
	}
	c, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	messages, err := c.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	var all []demo.Stored
	for len(all) < count {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, err
		}
		all = append(all, demo.Stored{UUID: msg.Headers().Get(wmnats.WatermillUUIDHdr), Payload: msg.Data()})
	}
	return all, nil
}

func (b *broker) TakeAway() error { return b.server.Stop() }

func (b *broker) BringBack(ctx context.Context) error { return b.server.Restart(ctx) }

func (b *broker) Close() {
	b.conn.Close()
	_ = b.server.Close()
}
