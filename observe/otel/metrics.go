package otel

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"
)

// operation is a messaging operation of the semantic conventions.
type operation struct {
	name string
	kind attribute.KeyValue
}

var (
	create  = &operation{"create", semconv.MessagingOperationTypeCreate}
	send    = &operation{"send", semconv.MessagingOperationTypeSend}
	process = &operation{"process", semconv.MessagingOperationTypeProcess}
)

// metrics are the instruments.
type metrics struct {
	messages messagingconv.ClientSentMessages
	took     messagingconv.ClientOperationDuration
	consumed messagingconv.ClientConsumedMessages
	handling messagingconv.ProcessDuration
	lag      metric.Float64Histogram
	dead     metric.Int64Counter
}

func newMetrics(meter metric.Meter) (m metrics, err error) {
	var errs [6]error
	seconds := metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30,
		60, 300, 3600)
	m.messages, errs[0] = messagingconv.NewClientSentMessages(meter)
	m.took, errs[1] = messagingconv.NewClientOperationDuration(meter, seconds)
	m.consumed, errs[2] = messagingconv.NewClientConsumedMessages(meter)
	m.handling, errs[3] = messagingconv.NewProcessDuration(meter, seconds)
	m.lag, errs[4] = meter.Float64Histogram("outbox.message.lag", metric.WithUnit("s"), seconds,
		metric.WithDescription("Time from insert to publish, without messages delayed on purpose."))
	m.dead, errs[5] = meter.Int64Counter("outbox.dead.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Messages of the outbox that died. They are not retried until an operator requeues them."))
	return m, errors.Join(errs[:]...)
}

// sent counts messages that were created or sent, including failures. The duration is 0 for messages written together
// with COMMIT, and is not recorded.
func (m *metrics) sent(ctx context.Context, set attribute.Set, messages int, took time.Duration) {
	m.messages.AddSet(ctx, int64(messages), set)
	if took > 0 {
		m.took.RecordSet(ctx, took.Seconds(), set)
	}
}

// late records the lag of a published message.
func (m *metrics) late(ctx context.Context, set attribute.Set, age time.Duration) {
	m.lag.Record(ctx, age.Seconds(), metric.WithAttributeSet(set))
}

// processed counts a handled message. Only one message of a batch has a duration.
func (m *metrics) processed(ctx context.Context, set attribute.Set, batch int, took time.Duration) {
	m.consumed.AddSet(ctx, 1, set)
	if batch == 0 || took > 0 {
		m.handling.RecordSet(ctx, took.Seconds(), set)
	}
}

// died counts a dead message.
func (m *metrics) died(ctx context.Context, set attribute.Set) {
	m.dead.Add(ctx, 1, metric.WithAttributeSet(set))
}

// series identifies a time series by the values of its attributes.
type series struct {
	op                          *operation
	db, topic, service, failure string
}

// sets caches attribute sets, because creating one for each message would cost more than counting the message.
type sets struct{ known sync.Map }

func (s *sets) of(system string, key series) attribute.Set {
	if set, ok := s.known.Load(key); ok {
		return set.(attribute.Set)
	}
	list := []attribute.KeyValue{
		semconv.MessagingSystemKey.String(system), semconv.MessagingOperationName(key.op.name), key.op.kind,
		semconv.MessagingDestinationName(key.topic), attrDB.String(key.db),
	}
	if key.service != "" {
		list = append(list, semconv.MessagingConsumerGroupName(key.service))
	}
	if key.failure != "" {
		list = append(list, semconv.ErrorTypeKey.String(key.failure))
	}
	set := attribute.NewSet(list...)
	s.known.Store(key, set)
	return set
}
