package main

import (
	"context"
	"time"
)

const (
	inbounded     = 8000
	inboundedSlow = 1000 // messages when one handler at a time waits for something
	inboundKeys   = 1000
	inFlight      = 16 // the default of kafka.Subscriber
)

// inboundGroup compares reading a Kafka partition by key with watermill-kafka's subscriber. Both have the same Router,
// Stack and handler, which does one INSERT.
func (b *bench) inboundGroup() group {
	return group{
		about: 260 * time.Second,
		rows: []row{
			{name: "inbound_kafka_vs_watermill", what: "one partition of Kafka through Stack and one INSERT, 16 in flight: " +
				"kafka.Subscriber / watermill-kafka's subscriber",
				floor: 2.2, aim: 3.5, ours: "by_key", rival: "by_watermill"},
			{name: "inbound_kafka_rtt", what: "the same through a proxy that adds 1 ms of round trip to the database",
				floor: 6, aim: 10,
				ours: "by_key_rtt", rival: "by_watermill_rtt"},
			{name: "inbound_kafka_slow", what: "the same with a handler that takes 5 ms more", floor: 9, aim: 14,
				ours: "by_key_slow", rival: "by_watermill_slow"},
			{name: "inbound_failing_keys", what: "kafka.Subscriber, the other messages while 1 % of keys fail " +
				"forever / while none fails",
				floor: 0.7, aim: 0.9, ours: "by_key_failing", rival: "by_key"},
			{name: "inbound_duplicates", what: "kafka.Subscriber, messages that were all handled before / new ones",
				floor: 2, aim: 3, ours: "by_key_again", rival: "by_key"},
			{name: "inbound_batch_vs_single", what: "kafka.Subscriber and one INSERT: middleware.Batch, 1,000 in flight " +
				"/ Stack, 16 in flight",
				floor: 5, aim: 7, ours: "by_batch", rival: "by_key"},
			{name: "inbound_batch_rtt", what: "the same through a proxy that adds 1 ms of round trip to the database",
				floor: 8, aim: 10, ours: "by_batch_rtt", rival: "by_key_rtt"},
		},
		sides: func(ctx context.Context) ([]side, func(), error) {
			at, err := b.startKafka(ctx)
			if err != nil {
				return nil, nil, err
			}
			n, few := b.scaled(inbounded), b.scaled(inboundedSlow)
			const rtt, work = time.Millisecond, 5 * time.Millisecond
			kafka, _ := at.(*kafkaBroker)
			run := func(in inbound) func(context.Context) (measured, error) {
				in.bench, in.at = b, kafka
				return in.run
			}
			note := "watermill-kafka handles " + number(float64(few)) + " messages"
			return []side{
				{name: "by_key", run: run(inbound{n: n, byKey: true})},
				{name: "by_watermill", rounds: b.slowRounds(), run: run(inbound{n: n / 2})},
				{name: "by_key_rtt", run: run(inbound{n: n / 2, byKey: true, rtt: rtt})},
				{name: "by_watermill_rtt", rounds: b.slowRounds(), note: note, run: run(inbound{n: few, rtt: rtt})},
				{name: "by_key_slow", run: run(inbound{n: n / 2, byKey: true, work: work})},
				{name: "by_watermill_slow", rounds: b.slowRounds(), note: note, run: run(inbound{n: few, work: work})},
				{name: "by_key_failing", run: run(inbound{n: n, byKey: true, failing: 100})},
				{name: "by_batch", run: run(inbound{n: n * 5, byKey: true, batch: true})},
				{name: "by_batch_rtt", run: run(inbound{n: n * 5, byKey: true, batch: true, rtt: rtt})},
				{name: "by_key_again", run: run(inbound{n: n, byKey: true, again: true})},
			}, at.close, nil
		},
	}
}
