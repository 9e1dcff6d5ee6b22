package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

const (
	fetchBytes = 1 << 20
	maxFetch   = 256 << 20 // larger than any message
	fetchTries = 10
	fetchPause = 250 * time.Millisecond
)

// partitionReader reads a partition up to its current end. sarama's consumers do not report their position, so they
// would wait forever if a log ends with a transaction marker.
type partitionReader struct {
	client    sarama.Client
	topic     string
	partition int32

	from, end int64 // of the offsets to read; from is negative if no message is new enough
}

// read calls fn with the records written at or after a time.
func (r *partitionReader) read(ctx context.Context, after time.Time, fn func(*sarama.ConsumerMessage) error) error {
	first := sarama.OffsetOldest
	if ms := after.UnixMilli(); ms > 0 {
		first = ms
	}
	err := r.retry(ctx, func() (err error) {
		if r.end, err = r.client.GetOffset(r.topic, r.partition, sarama.OffsetNewest); err == nil {
			r.from, err = r.client.GetOffset(r.topic, r.partition, first)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("kafka: offsets of topic %q: %w", r.topic, err)
	}
	size := int32(fetchBytes)
	for next := r.from; next >= 0 && next < r.end; {
		var block *sarama.FetchResponseBlock
		if err := r.retry(ctx, func() (err error) {
			block, err = r.fetch(next, size, sarama.ReadUncommitted)
			return err
		}); err != nil {
			return fmt.Errorf("kafka: read topic %q: %w", r.topic, err)
		}
		begun := next
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
				if batch.Control || offset < next || offset >= r.end {
					continue
				}
				if err := fn(&sarama.ConsumerMessage{
					Topic: r.topic, Partition: r.partition, Offset: offset, Key: record.Key, Value: record.Value,
					Headers: record.Headers, Timestamp: batch.FirstTimestamp.Add(record.TimestampDelta),
				}); err != nil {
					return err
				}
			}
			next = max(next, batch.FirstOffset+int64(batch.LastOffsetDelta)+1)
		}
		switch {
		case next > begun:
		case size >= maxFetch:
			return fmt.Errorf("kafka: the batch at offset %d of partition %d of topic %q takes more than %d MiB", next,
				r.partition, r.topic, maxFetch>>20)
		case len(block.RecordsSet) > 0:
			size *= 2
		}
	}
	return nil
}

// afterMarkers returns the first offset at or after from that has a message, or the end of the partition. It skips
// transaction markers and, if only committed messages are read, aborted messages.
func (r *partitionReader) afterMarkers(
	ctx context.Context, from int64, isolation sarama.IsolationLevel,
) (next int64, err error) {
	for next = from; ; {
		var block *sarama.FetchResponseBlock
		if err := r.retry(ctx, func() (err error) {
			block, err = r.fetch(next, fetchBytes, isolation)
			return err
		}); err != nil {
			return next, err
		}
		begun := next
		for _, records := range block.RecordsSet {
			batch := records.RecordBatch
			switch {
			case batch == nil || batch.PartialTrailingRecord:
				return next, nil
			case !batch.Control && !(batch.IsTransactional && isAborted(block, batch)):
				return next, nil
			}
			next = max(next, batch.FirstOffset+int64(batch.LastOffsetDelta)+1)
		}
		if next == begun {
			return next, nil
		}
	}
}

// isAborted reports whether a batch belongs to a transaction that the response lists as aborted. A producer has one
// transaction at a time, which its marker ends.
func isAborted(block *sarama.FetchResponseBlock, batch *sarama.RecordBatch) bool {
	aborted := false
	for _, txn := range block.AbortedTransactions {
		aborted = aborted || txn.ProducerID == batch.ProducerID && txn.FirstOffset <= batch.FirstOffset
	}
	for _, records := range block.RecordsSet { // another transaction of the producer may follow in the same response
		marker := records.RecordBatch
		if marker != nil && marker.Control && marker.ProducerID == batch.ProducerID &&
			marker.FirstOffset < batch.FirstOffset {
			return false
		}
	}
	return aborted
}

func (r *partitionReader) fetch(offset int64, size int32, isolation sarama.IsolationLevel) (*sarama.FetchResponseBlock,
	error) {
	leader, epoch, err := r.client.LeaderAndEpoch(r.topic, r.partition)
	if err != nil {
		return nil, err
	}
	request := &sarama.FetchRequest{
		Version: 10, SessionEpoch: -1, MinBytes: 1, MaxBytes: maxFetch, MaxWaitTime: 500, Isolation: isolation,
	}
	request.AddBlock(r.topic, r.partition, offset, size, epoch)
	response, err := leader.Fetch(request)
	if err != nil {
		_ = leader.Close() // the next use reopens it
		return nil, err
	}
	block := response.GetBlock(r.topic, r.partition)
	switch {
	case block == nil:
		return nil, sarama.ErrIncompleteResponse
	case block.Err != sarama.ErrNoError:
		return nil, block.Err
	}
	return block, nil
}

// retry repeats a failed request, because the partition may have a new leader.
func (r *partitionReader) retry(ctx context.Context, ask func() error) error {
	for tries := 1; ; tries++ {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err := ask()
		if err == nil || tries == fetchTries || errors.Is(err, sarama.ErrOffsetOutOfRange) ||
			errors.Is(err, sarama.ErrTopicAuthorizationFailed) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(fetchPause):
		}
		_ = r.client.RefreshMetadata(r.topic)
	}
}

// whole returns an error if retention.bytes may have deleted messages written at or after a time.
func (r *partitionReader) whole(ctx context.Context, after time.Time) error {
	var oldest int64
	err := r.retry(ctx, func() (err error) {
		oldest, err = r.client.GetOffset(r.topic, r.partition, sarama.OffsetOldest)
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("kafka: offsets of topic %q: %w", r.topic, err)
	case oldest == 0, r.from > oldest, r.from < 0 && oldest < r.end:
		return nil
	case r.from < 0:
		return fmt.Errorf("kafka: topic %q has retention.bytes, and everything in partition %d up to offset %d was "+
			"deleted: missing messages may have been deleted this way; once the partition has messages again, "+
			"compare only later ones (Filter.After)", r.topic, r.partition, oldest)
	}
	return fmt.Errorf("kafka: topic %q has retention.bytes, and partition %d begins with offset %d, later than %s: "+
		"missing messages may have been deleted this way; compare only later messages "+
		"(Filter.After)", r.topic, r.partition, oldest, after.UTC().Format(time.RFC3339))
}
