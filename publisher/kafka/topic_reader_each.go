package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	fetchBytes  = 1 << 20
	fetchMost   = 256 << 20 // more than a broker lets anybody set for a message
	fetchWait   = 500 * time.Millisecond
	fetchTries  = 10
	fetchPause  = 250 * time.Millisecond
	fetchFormat = 10 // of requests; brokers have it since 2.1
)

// Each calls fn with the UUID of each message that a topic holds and that was sent at or after a time, as Kafka's
// timestamps say: with message.timestamp.type CreateTime, the default, by the clock of the sender. Messages without a
// UUID are skipped. It ends with fn's error. It returns an error if the topic does not exist, and where what is missing
// may have been deleted as it was meant to be: if the topic is compacted, or deletes messages after less time than
// since then, or because of retention.bytes, and then only after fn was called with all that is there. It also does
// where most brokers do not answer: which one leads a partition, and has all of it, is what most of them say.
func (l *TopicReader) Each(ctx context.Context, topic string, after time.Time, fn func(uuid string) error) error {
	client, err := l.connect()
	if err != nil {
		return err
	}
	partitions, err := client.Partitions(topic)
	if err != nil {
		return fmt.Errorf("kafka: topic %q: %w", topic, err)
	}
	s, err := l.settingsOf(client, topic)
	if err != nil {
		return err
	}
	if s.compacted {
		return fmt.Errorf(
			"kafka: topic %q is compacted: what is missing may have been replaced by a later message of its key", topic)
	}
	if s.keeps >= 0 && after.Before(time.Now().Add(-s.keeps)) {
		return fmt.Errorf("kafka: topic %q deletes messages after %s, and %s is longer ago: what is missing may have been "+
			"deleted so; compare later messages alone (Filter.After)",
			topic, s.keeps, after.UTC().Format(time.RFC3339))
	}
	var known leaders
	for _, p := range partitions {
		r := partitionReader{client: client, topic: topic, partition: p, leaders: &known, size: fetchBytes}
		if err := r.read(ctx, after, func(msg *sarama.ConsumerMessage) error {
			uuid, err := l.uuid(msg)
			if err != nil {
				return badMessage(msg, err)
			}
			if uuid == "" {
				return nil
			}
			return fn(uuid)
		}); err != nil {
			return err
		}
		if s.sized {
			if err := r.whole(ctx, after); err != nil {
				return err
			}
		}
	}
	return nil
}

// partitionReader reads a partition from some offset to where it ends now. sarama's consumers do not say where they
// are: where a log ends with what is no message, one would wait for ever.
type partitionReader struct {
	client    sarama.Client
	topic     string
	partition int32
	leaders   *leaders
	leader    *sarama.Broker // nil = it is to be found
	epoch     int32          // of the leader
	from      int64          // offset of the first message that is new enough; below 0 = there is none
	next      int64          // offset
	end       int64          // offset behind the last message, as it was when the reading began
	size      int32          // of a fetch
}

// whole fails if the oldest message that is left is one of those that were read, or if none is left: then what
// retention.bytes deleted may be as new as they are.
func (r *partitionReader) whole(ctx context.Context, after time.Time) error {
	var oldest int64
	err := r.insist(ctx, func() (err error) {
		oldest, err = r.offset(sarama.OffsetOldest)
		return err
	})
	if err != nil {
		return fmt.Errorf("kafka: offsets of topic %q: %w", r.topic, err)
	}
	if oldest == 0 || r.from > oldest || r.from < 0 && oldest < r.end {
		return nil
	}
	if r.from < 0 {
		return fmt.Errorf("kafka: topic %q has retention.bytes, and all that partition %d held was deleted, up to offset "+
			"%d: what is missing may have been deleted so; "+
			"once the partition holds messages again, compare later ones alone (Filter.After)", r.topic, r.partition, oldest)
	}
	return fmt.Errorf("kafka: topic %q has retention.bytes, and partition %d begins with offset %d, later than %s: "+
		"what is missing may have been deleted so; "+
		"compare later messages alone (Filter.After)", r.topic, r.partition, oldest, after.UTC().Format(time.RFC3339))
}

func (r *partitionReader) read(ctx context.Context, after time.Time, fn func(*sarama.ConsumerMessage) error) error {
	err := r.insist(ctx, func() (err error) {
		if r.end, err = r.offset(sarama.OffsetNewest); err != nil {
			return err
		}
		from := sarama.OffsetOldest
		if ms := after.UnixMilli(); ms > 0 {
			from = ms
		}
		r.from, err = r.offset(from)
		r.next = r.from
		return err
	})
	if err != nil {
		return fmt.Errorf("kafka: offsets of topic %q: %w", r.topic, err)
	}
	if r.next < 0 { // nothing is that new
		return nil
	}
	for r.next < r.end {
		var block *sarama.FetchResponseBlock
		if err := r.insist(ctx, func() (err error) {
			block, err = r.fetch()
			return err
		}); err != nil {
			return fmt.Errorf("kafka: read topic %q: %w", r.topic, err)
		}
		if err := r.pass(block, fn); err != nil {
			return err
		}
	}
	return nil
}

// insist asks the leader, and again if that fails, for it may be another one.
func (r *partitionReader) insist(ctx context.Context, ask func() error) error {
	for tries := 1; ; tries++ {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var err error
		if r.leader == nil {
			err = r.findLeader()
		}
		if err == nil {
			err = ask()
		}
		if err == nil || tries == fetchTries || errors.Is(err, sarama.ErrOffsetOutOfRange) ||
			errors.Is(err, sarama.ErrTopicAuthorizationFailed) {
			return err
		}
		r.leader, *r.leaders = nil, leaders{}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(fetchPause):
		}
		_ = r.client.RefreshMetadata(r.topic) // there may be other brokers
	}
}

func (r *partitionReader) fetch() (*sarama.FetchResponseBlock, error) {
	request := &sarama.FetchRequest{
		Version: fetchFormat, SessionEpoch: -1, MinBytes: 1, MaxBytes: fetchMost,
		MaxWaitTime: int32(fetchWait / time.Millisecond),
	}
	request.AddBlock(r.topic, r.partition, r.next, r.size, r.epoch)
	response, err := r.leader.Fetch(request)
	if err != nil {
		_ = r.leader.Close() // it opens anew
		return nil, err
	}
	block := response.GetBlock(r.topic, r.partition)
	if block == nil {
		return nil, sarama.ErrIncompleteResponse
	}
	if block.Err != sarama.ErrNoError {
		return nil, block.Err
	}
	return block, nil
}

// pass hands on the messages of a response that come before the end.
func (r *partitionReader) pass(block *sarama.FetchResponseBlock, fn func(*sarama.ConsumerMessage) error) error {
	begun := r.next
	for _, records := range block.RecordsSet {
		batch := records.RecordBatch
		if batch == nil {
			return fmt.Errorf("kafka: topic %q has messages in a format from before Kafka 0.11", r.topic)
		}
		if batch.PartialTrailingRecord {
			continue
		}
		for _, record := range batch.Records {
			offset := batch.FirstOffset + record.OffsetDelta
			if batch.Control || offset < r.next || offset >= r.end {
				continue
			}
			err := fn(&sarama.ConsumerMessage{
				Topic: r.topic, Partition: r.partition, Offset: offset, Key: record.Key, Value: record.Value,
				Headers: record.Headers, Timestamp: batch.FirstTimestamp.Add(record.TimestampDelta),
			})
			if err != nil {
				return err
			}
		}
		r.next = max(r.next, batch.FirstOffset+int64(batch.LastOffsetDelta)+1)
	}
	switch {
	case r.next > begun:
	case r.size >= fetchMost:
		return fmt.Errorf("kafka: the batch at offset %d of partition %d of topic %q takes more than %d MiB", r.next,
			r.partition, r.topic, fetchMost>>20)
	case len(block.RecordsSet) > 0:
		r.size *= 2
	}
	return nil
}

func badMessage(msg *sarama.ConsumerMessage, err error) error {
	return fmt.Errorf("kafka: message %d of partition %d of topic %q: %w", msg.Offset, msg.Partition, msg.Topic, err)
}

// Messages calls fn with each message that a topic holds when Messages is called, and its timestamp, partition by
// partition. It ends with fn's error, and returns an error if the topic does not exist or a message cannot be read.
func (l *TopicReader) Messages(ctx context.Context, topic string, fn func(*message.Message, time.Time) error) error {
	client, err := l.connect()
	if err != nil {
		return err
	}
	partitions, err := client.Partitions(topic)
	if err != nil {
		return fmt.Errorf("kafka: topic %q: %w", topic, err)
	}
	var known leaders
	for _, p := range partitions {
		r := partitionReader{client: client, topic: topic, partition: p, leaders: &known, size: fetchBytes}
		if err := r.read(ctx, time.Time{}, func(msg *sarama.ConsumerMessage) error {
			m, err := Unmarshaler{Unmarshaler: l.cfg.Unmarshaler}.Unmarshal(msg)
			if err != nil {
				return badMessage(msg, err)
			}
			return fn(m, msg.Timestamp)
		}); err != nil {
			return err
		}
	}
	return nil
}

// uuid finds the UUID of a message.
func (l *TopicReader) uuid(msg *sarama.ConsumerMessage) (string, error) {
	if l.cfg.Unmarshaler == nil {
		for _, h := range msg.Headers {
			if string(h.Key) == wmkafka.UUIDHeaderKey {
				return string(h.Value), nil
			}
		}
		return "", nil
	}
	m, err := l.cfg.Unmarshaler.Unmarshal(msg)
	if err != nil {
		return "", err
	}
	return m.UUID, nil
}
