package main

import (
	"context"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

const drained = 100_000

func noop(n int) (*sink, error) { return newSink(n), nil }

// drainGroup is the forwarder against the hand-written loop and Watermill's forwarder, with a publisher that
// does nothing.
func (b *bench) drainGroup() group {
	n := b.scaled(drained)
	return group{
		about: 120 * time.Second,
		rows: []row{
			{name: "drain_vs_go_outbox", what: "ours / efureev/go-outbox", floor: 2, aim: 3,
				missing: "its dispatcher is internal to its module and cannot be called from here"},
			{name: "drain_keep_vs_raw", what: "drain 100,000, rows kept: ours / hand-written loop", floor: 0.85, aim: 1,
				ours: "ours_keep", rival: "raw_keep", quick: true, chart: "no-op publisher, rows kept", label: "hand-written loop"},
			{name: "drain_delete_vs_raw", what: "drain 100,000, rows deleted: ours / hand-written loop", floor: 0.85, aim: 0.95,
				ours: "ours_delete", rival: "raw_delete", quick: true, chart: "no-op publisher, rows deleted",
				label: "hand-written loop"},
			{name: "drain_keep_vs_watermill", what: "drain 100,000, rows kept: ours / Watermill's forwarder", floor: 5, aim: 7,
				ours: "ours_keep", rival: "watermill", quick: true, chart: "no-op publisher, rows kept",
				label: "Watermill's forwarder"},
			{name: "drain_delete_vs_watermill", what: "drain 100,000, ours deleting / Watermill's forwarder", floor: 8, aim: 12,
				ours: "ours_delete", rival: "watermill"},
		},
		sides: func(context.Context) ([]side, func(), error) {
			return []side{
				{name: "ours_keep", run: b.oursDraining(n, forwarder.Config{}, noop)},
				{name: "raw_keep", run: b.rawLoop(n, rawMark)},
				{name: "ours_delete", run: b.oursDraining(n, forwarder.Config{Retention: -1}, noop)},
				{name: "raw_delete", run: b.rawLoop(n, rawDelete)},
				{name: "watermill", rounds: b.slowRounds(), run: b.watermillForwarder(n, noop)},
			}, nil, nil
		},
	}
}

// slowGroup compares the same with a publisher that takes a millisecond per call.
func (b *bench) slowGroup() group {
	n, slow := b.scaled(drained), b.scaled(1_500)
	takesOne := func(n int) (*sink, error) {
		s := newSink(n)
		s.delay = time.Millisecond
		return s, nil
	}
	return group{
		about: 30 * time.Second,
		rows: []row{
			{
				name:  "drain_1ms_vs_watermill",
				what:  "publisher takes 1 ms per call, 100,000 messages, 64 in flight: ours / Watermill's forwarder",
				floor: 45, aim: 55, ours: "ours_1ms", rival: "watermill_1ms", quick: true, chart: "publisher takes 1 ms",
				label: "Watermill's forwarder",
			},
		},
		sides: func(context.Context) ([]side, func(), error) {
			return []side{
				{name: "ours_1ms", run: b.oursDraining(n, forwarder.Config{Concurrency: 64}, takesOne)},
				{name: "watermill_1ms", rounds: b.slowRounds(), run: b.watermillForwarder(slow, takesOne),
					note: "Watermill drains " + number(float64(slow)) + " messages; " + sleepFact()},
			}, nil, nil
		},
	}
}

// sleepFact reports how long a sleep of one millisecond takes on this machine.
func sleepFact() string {
	const times = 100
	begun := time.Now()
	for range times {
		time.Sleep(time.Millisecond)
	}
	return "its 1 ms takes " + (time.Since(begun) / times).Round(10*time.Microsecond).String()
}

// slowRounds is the number of rounds of a slow rival.
func (b *bench) slowRounds() int {
	if b.quick {
		return 2
	}
	return 3
}
