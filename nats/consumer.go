package nats

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// group is the priority group in which the server pins one process.
	group = "owner"
	// consumerTimeout is how long a request waits for the server's reply.
	consumerTimeout = 5 * time.Second
	// leaveTimeout is how long a closing subscription waits for NATS after its handlers have ended.
	leaveTimeout = consumerTimeout + time.Second
)

var durableName = strings.NewReplacer(".", "_", "*", "any", ">", "all", " ", "_", "/", "_", "\\", "_")

// source is a durable consumer.
type source struct {
	stream   jetstream.Stream
	consumer jetstream.Consumer
	want     jetstream.ConsumerConfig
	next     string // subject of pulls

	// Limits for pulls, set by the consumer or the server; they may change.
	batch   int
	expires time.Duration
}

// bound sets the limits for pulls from the consumer's configuration.
func (s *source) bound(c jetstream.ConsumerConfig, wait time.Duration) {
	s.batch, s.expires = min(maxPull, s.want.MaxAckPending), wait
	if c.MaxRequestBatch > 0 {
		s.batch = min(s.batch, c.MaxRequestBatch)
	}
	if c.MaxRequestExpires > 0 {
		s.expires = min(s.expires, c.MaxRequestExpires)
	}
}

// open finds the consumer of a topic, or creates it.
func (s *subscription) open(ctx context.Context, js jetstream.JetStream) (*source, error) {
	ctx, cancel := context.WithTimeout(ctx, consumerTimeout)
	defer cancel()
	streamName, err := streamOf(ctx, js, s.topic)
	if err != nil {
		return nil, fmt.Errorf("find the stream of the topic: %w", err)
	}
	stream, err := js.Stream(ctx, streamName)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", streamName, err)
	}
	want := jetstream.ConsumerConfig{
		Durable: s.durable, FilterSubject: s.topic, AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1,
		AckWait: s.cfg.AckWait, MaxAckPending: s.cfg.MaxAhead,
		PriorityPolicy: jetstream.PriorityPolicyPinned, PriorityGroups: []string{group}, PinnedTTL: s.cfg.pinnedTTL(),
	}
	consumer, err := stream.Consumer(ctx, s.durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		consumer, err = stream.CreateConsumer(ctx, want)
	} else if err == nil {
		have := consumer.CachedInfo().Config
		if err := usable(have, want); err != nil {
			return nil, fmt.Errorf("consumer %s: %w", s.durable, err)
		}
		if have.AckWait != want.AckWait || have.MaxAckPending != want.MaxAckPending || have.PinnedTTL != want.PinnedTTL {
			have.AckWait, have.MaxAckPending, have.PinnedTTL = want.AckWait, want.MaxAckPending, want.PinnedTTL
			consumer, err = stream.UpdateConsumer(ctx, have)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", s.durable, err)
	}
	if consumer.CachedInfo().Config.PriorityPolicy != jetstream.PriorityPolicyPinned {
		_ = stream.DeleteConsumer(ctx, s.durable) // a new consumer, which an upgraded version would reject
		return nil, errTooOld
	}
	api := "$JS.API."
	if s.cfg.Domain != "" {
		api = "$JS." + s.cfg.Domain + ".API."
	}
	from := &source{
		stream: stream, consumer: consumer, want: want,
		next: api + "CONSUMER.MSG.NEXT." + streamName + "." + s.durable,
	}
	from.bound(consumer.CachedInfo().Config, s.cfg.pullWait())
	return from, nil
}

// Cause: a consumer reads one stream, so the messages of the others would wait.
// Cure: subscribe to topics of one stream each, or put the subjects into one stream.
var errStreams = errors.New("the topic matches subjects of several streams")

// streamOf returns the stream that has the messages of the topic.
func streamOf(ctx context.Context, js jetstream.JetStream, topic string) (string, error) {
	var names []string
	lister := js.StreamNames(ctx, jetstream.WithStreamListSubject(topic))
	for name := range lister.Name() {
		names = append(names, name)
	}
	switch err := lister.Err(); {
	case err != nil:
		return "", err
	case len(names) == 0:
		return "", jetstream.ErrStreamNotFound
	case len(names) > 1:
		return "", fmt.Errorf("%w: %s", errStreams, strings.Join(names, ", "))
	}
	return names[0], nil
}

var errTooOld = errors.New("the server pins no client: run nats-server 2.11 or later")

// Cause: another program or other settings created it.
// Cure: or delete it: the stream is then read from its beginning.
var errOtherConsumer = errors.New("the consumer was made for something else: " +
	"use another name in SubscriberConfig.Consumer")

// usable returns an error if an existing consumer would break the order or lose messages.
func usable(have, want jetstream.ConsumerConfig) error {
	switch {
	case have.FilterSubject != want.FilterSubject || len(have.FilterSubjects) > 0:
		return fmt.Errorf("%w: it filters another subject", errOtherConsumer)
	case have.AckPolicy != want.AckPolicy:
		return fmt.Errorf("%w: its AckPolicy is not explicit", errOtherConsumer)
	case have.PriorityPolicy != want.PriorityPolicy || len(have.PriorityGroups) != 1 || have.PriorityGroups[0] != group:
		return fmt.Errorf("%w: its PriorityPolicy is not pinned_client with the group %q", errOtherConsumer, group)
	case have.MaxDeliver > 0 || len(have.BackOff) > 0:
		return fmt.Errorf("%w: it has MaxDeliver or BackOff", errOtherConsumer)
	case have.HeadersOnly:
		return fmt.Errorf("%w: it has HeadersOnly, and would deliver empty payloads", errOtherConsumer)
	}
	return nil
}
