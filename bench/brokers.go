package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

const (
	brokered     = 50_000
	brokeredSlow = 15_000 // of Watermill's forwarder
)

// broker creates a fresh topic of a real broker for each run.
type broker interface {
	publisher() (message.Publisher, error)
	create(topic string) error
	stored(topic string) (int, error)
	remove(topic string)
	close()
}

func (b *bench) jetStreamGroup() group {
	return b.brokerGroup("jetstream", "JetStream, file storage", row{
		name: "drain_jetstream_vs_watermill", floor: 3, aim: 4,
		what: "real JetStream, both through nats.Publisher, best Concurrency: ours / Watermill's forwarder",
	}, b.startJetStream)
}

func (b *bench) kafkaGroup() group {
	return b.brokerGroup("kafka", "Kafka, idempotent, acks from all", row{
		name: "drain_kafka_vs_watermill", floor: 8, aim: 14,
		what: "real Kafka, both through kafka.Publisher, best Concurrency: ours / Watermill's forwarder",
	}, b.startKafka)
}

func (b *bench) rabbitMQGroup() group {
	return b.brokerGroup("amqp", "RabbitMQ, confirms, durable queue", row{
		name: "drain_amqp_vs_watermill", floor: 3, aim: 5,
		what: "real RabbitMQ, both through amqp.Publisher, best Concurrency: ours / Watermill's forwarder",
	}, b.startRabbitMQ)
}

func (b *bench) brokerGroup(name, title string, r row, start func(context.Context) (broker, error)) group {
	r.ours, r.rival, r.chart, r.label = "ours_"+name, "watermill_"+name, title, "Watermill's forwarder"
	return group{
		about: 70 * time.Second,
		rows:  []row{r},
		sides: func(ctx context.Context) ([]side, func(), error) {
			at, err := start(ctx)
			if err != nil {
				return nil, nil, err
			}
			n, slow := b.scaled(brokered), b.scaled(brokeredSlow)
			// The publisher's settings are the same on both sides.
			best, concurrency := 0.0, 0
			for _, c := range []int{64, 128, 256} {
				m, err := b.throughBroker(n/2, at,
					func(n int, to func(int) (*sink, error)) func(context.Context) (measured, error) {
						return b.oursDraining(n, forwarder.Config{Concurrency: c}, to)
					})(ctx)
				if err != nil {
					at.close()
					return nil, nil, err
				}
				b.progress("%-24s Concurrency %d  %12s", "ours_"+name, c, number(m.value))
				if m.value > best {
					best, concurrency = m.value, c
				}
			}
			return []side{
				{name: r.ours, note: fmt.Sprintf("Concurrency %d", concurrency),
					run: b.throughBroker(n, at, func(n int, to func(int) (*sink, error)) func(context.Context) (measured, error) {
						return b.oursDraining(n, forwarder.Config{Concurrency: concurrency}, to)
					})},
				{name: r.rival, rounds: b.slowRounds(), note: "Watermill drains " + number(float64(slow)) + " messages",
					run: b.throughBroker(slow, at, b.watermillForwarder)},
			}, at.close, nil
		},
	}
}

var brokerRuns atomic.Int64

// throughBroker lets a side publish to its own topic, and counts the messages there at the end.
func (b *bench) throughBroker(
	n int, at broker, drain func(int, func(int) (*sink, error)) func(context.Context) (measured, error),
) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		destination := fmt.Sprintf("events-%d", brokerRuns.Add(1))
		if err := at.create(destination); err != nil {
			return measured{}, err
		}
		defer at.remove(destination)
		pub, err := at.publisher()
		if err != nil {
			return measured{}, err
		}
		defer pub.Close()
		m, err := drain(n, func(n int) (*sink, error) {
			s := newSink(n)
			s.next = onTopic{pub, destination}
			return s, nil
		})(ctx)
		if err != nil {
			return m, err
		}
		stored, err := at.stored(destination)
		if err == nil && stored != n {
			err = fmt.Errorf("the broker has %d messages instead of %d", stored, n)
		}
		return m, err
	}
}

// onTopic publishes everything to one topic.
type onTopic struct {
	message.Publisher
	topic string
}

func (o onTopic) Publish(_ string, messages ...*message.Message) error {
	return o.Publisher.Publish(o.topic, messages...)
}
