package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// sink is the publisher that every side publishes to. It records which messages arrived, checks the order of each key,
// waits if asked to, and passes messages to next or discards them.
type sink struct {
	next  message.Publisher // nil = none
	delay time.Duration
	sleep func(time.Duration)   // implements delay; default time.Sleep
	fail  func(index int) error // nil = never
	stamp func(index int)       // nil = no stamps
	keyOf func(index int) int   // number of the key; default index modulo keys

	n        int
	seen     []atomic.Uint64 // one bit per message
	last     []atomic.Int64  // index + 1 of the last message of each key
	first    []int64         // index + 1 of the first message of each key; nil = not recorded
	distinct atomic.Int64
	overtook atomic.Int64
	strange  atomic.Int64
	wanted   int64
	done     chan struct{} // closed when wanted messages have arrived
}

func newSink(n int) *sink {
	return &sink{
		n: n, seen: make([]atomic.Uint64, n/64+1), last: make([]atomic.Int64, keys), wanted: int64(n), sleep: time.Sleep,
		done: make(chan struct{}),
	}
}

// Publish implements message.Publisher.
func (s *sink) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		i := indexOf(msg.UUID)
		if i < 0 || i >= s.n {
			s.strange.Add(1)
			return errors.New("not a message of this run")
		}
		if s.stamp != nil {
			s.stamp(i)
		}
		if s.delay > 0 {
			s.sleep(s.delay)
		}
		if s.fail != nil {
			if err := s.fail(i); err != nil {
				return err
			}
		}
		if s.next != nil {
			if err := s.next.Publish(topic, msg); err != nil {
				return err
			}
		}
		s.arrived(i)
	}
	return nil
}

func (s *sink) arrived(i int) {
	if bit := uint64(1) << (i % 64); s.seen[i/64].Or(bit)&bit != 0 {
		return
	}
	key := i % keys
	if s.keyOf != nil {
		key = s.keyOf(i)
	}
	before := s.last[key].Swap(int64(i + 1))
	if before > int64(i) {
		s.overtook.Add(1)
	}
	if before == 0 && s.first != nil {
		s.first[key] = int64(i + 1) // messages of a key come one after another
	}
	if s.distinct.Add(1) == s.wanted {
		close(s.done)
	}
}

// Close implements message.Publisher.
func (s *sink) Close() error { return nil }

// wait returns when all messages have arrived.
func (s *sink) wait(ctx context.Context) error {
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d of %d messages came: %w", s.distinct.Load(), s.wanted, ctx.Err())
	}
}

// check returns an error unless exactly the wanted messages arrived, in order per key.
func (s *sink) check() error {
	switch {
	case s.strange.Load() > 0:
		return fmt.Errorf("%d messages are not of this run", s.strange.Load())
	case s.distinct.Load() != s.wanted:
		return fmt.Errorf("%d distinct messages came instead of %d", s.distinct.Load(), s.wanted)
	case s.overtook.Load() > 0:
		return fmt.Errorf("%d messages overtook an earlier one of their key", s.overtook.Load())
	}
	return nil
}
