package otel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/ThreeDotsLabs/watermill/components/delay"

	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/observe"
)

const (
	attrDB      = attribute.Key("outbox.db")
	attrScope   = attribute.Key("outbox.scope")
	attrAttempt = attribute.Key("outbox.attempt")
	attrVerdict = attribute.Key("outbox.verdict")
	attrOutcome = attribute.Key("outbox.outcome")
)

// common sets the attributes that all spans have, and more.
func (o *observer) common(op *operation, db, topic string, more ...attribute.KeyValue) trace.SpanStartOption {
	return trace.WithAttributes(append(more, semconv.MessagingSystemKey.String(o.cfg.System),
		semconv.MessagingOperationName(op.name), op.kind,
		semconv.MessagingDestinationName(topic), attrDB.String(db))...)
}

// creating is the context key of the spans that WriteStart began.
type creating struct{}

// WriteStart implements observe.WriteObserver. Each message gets its own span and carries the span's context.
func (o *observer) WriteStart(ctx context.Context, start observe.WriteStart) context.Context {
	spans := make([]trace.Span, 0, len(start.Messages))
	for _, msg := range start.Messages {
		parent := ctx
		if !trace.SpanContextFromContext(ctx).IsValid() {
			parent, _ = o.stored(ctx, msg) // put there by the caller
		}
		with, span := o.tracer.Start(parent, create.name+" "+start.Topic, trace.WithSpanKind(trace.SpanKindProducer),
			o.common(create, start.DB, start.Topic, semconv.MessagingMessageID(msg.UUID),
				semconv.MessagingMessageBodySize(len(msg.Payload))))
		if span.SpanContext().IsValid() {
			o.store(with, msg)
		}
		spans = append(spans, span)
	}
	return context.WithValue(ctx, creating{}, spans)
}

// WriteEnd implements observe.WriteObserver.
func (o *observer) WriteEnd(ctx context.Context, end observe.WriteEnd) {
	spans, _ := ctx.Value(creating{}).([]trace.Span)
	failure := ""
	if end.Err != nil {
		failure = errorType(end.Err)
	}
	for _, span := range spans {
		fail(span, end.Err, failure)
		span.End()
	}
	o.metrics.sent(ctx, o.sets.of(o.cfg.System, series{op: create, db: end.DB, topic: end.Topic, failure: failure}),
		end.Messages, end.Duration)
}

// sending is the context key of a sent. It differs from the writer's key, because the contexts may be nested.
type sending struct{}

// sent is the span that PublishStart began, and whether the message was delayed on purpose.
type sent struct {
	span    trace.Span
	delayed bool
}

// PublishStart implements observe.PublishObserver.
func (o *observer) PublishStart(ctx context.Context, start observe.PublishStart) context.Context {
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient),
		o.common(send, start.DB, start.Topic, semconv.MessagingMessageID(start.Message.UUID),
			semconv.MessagingMessageBodySize(len(start.Message.Payload)),
			attrScope.String(start.Scope), attrAttempt.Int(start.Attempt))}
	parent, created := o.stored(ctx, start.Message)
	if (start.Attempt > 1 || start.Probe) && created.IsValid() {
		parent, opts = ctx, append(opts, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: created}))
	}
	ctx, span := o.tracer.Start(parent, send.name+" "+start.Topic, opts...)
	m := start.Message.Metadata
	return context.WithValue(ctx, sending{}, sent{span, m[delay.DelayedUntilKey] != "" || m[delay.DelayedForKey] != ""})
}

// PublishEnd implements observe.PublishObserver.
func (o *observer) PublishEnd(ctx context.Context, end observe.PublishEnd) {
	of, ok := ctx.Value(sending{}).(sent)
	failure := ""
	if end.Err != nil {
		if failure = end.Verdict; failure == "" {
			failure = "stopped"
		}
	}
	if ok {
		if end.Verdict != "" {
			of.span.SetAttributes(attrVerdict.String(end.Verdict))
		}
		fail(of.span, end.Err, failure)
		of.span.End()
	}
	o.metrics.sent(ctx, o.sets.of(o.cfg.System, series{op: send, db: end.DB, topic: end.Topic, failure: failure}),
		1, end.Duration)
	if end.Err == nil && !of.delayed {
		o.metrics.late(ctx, o.sets.of(o.cfg.System, series{op: send, db: end.DB, topic: end.Topic}), end.Age)
	}
}

// processing is the context key of the span that HandleStart began.
type processing struct{}

// HandleStart implements observe.HandleObserver.
func (o *observer) HandleStart(ctx context.Context, start observe.HandleStart) context.Context {
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer),
		o.common(process, start.DB, start.Topic, semconv.MessagingMessageID(start.Message.UUID),
			semconv.MessagingMessageBodySize(len(start.Message.Payload)),
			semconv.MessagingConsumerGroupName(start.Service), attribute.String("outbox.handler", start.Handler))}
	if !start.Began.IsZero() {
		opts = append(opts, trace.WithTimestamp(start.Began))
	}
	parent, created := o.stored(ctx, start.Message)
	if trace.SpanContextFromContext(ctx).IsValid() { // the delivery is being traced already
		parent = ctx
	}
	if created.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: created}))
	}
	ctx, span := o.tracer.Start(parent, process.name+" "+start.Topic, opts...)
	return context.WithValue(ctx, processing{}, span)
}

// HandleEnd implements observe.HandleObserver.
func (o *observer) HandleEnd(ctx context.Context, end observe.HandleEnd) {
	span, ok := ctx.Value(processing{}).(trace.Span)
	if end.Outcome == observe.Mismatch { // reported in addition to Duplicate
		if ok {
			span.AddEvent("mismatch")
		}
		return
	}
	failure := ""
	if end.Outcome == observe.Failed || end.Outcome == observe.Dead {
		failure = end.Outcome.String()
	}
	if ok {
		span.SetAttributes(attrOutcome.String(end.Outcome.String()), attrAttempt.Int(end.Attempts))
		if end.Batch > 0 {
			span.SetAttributes(semconv.MessagingBatchMessageCount(end.Batch))
		}
		if failure != "" {
			fail(span, end.Err, failure)
		}
		span.End()
	}
	o.metrics.processed(ctx,
		o.sets.of(o.cfg.System, series{op: process, db: end.DB, topic: end.Topic, service: end.Service, failure: failure}),
		end.Batch, end.Duration)
}

// MessageDead implements observe.DeadObserver.
func (o *observer) MessageDead(ctx context.Context, dead observe.MessageDead) {
	o.metrics.died(ctx, o.sets.of(o.cfg.System, series{op: send, db: dead.DB, topic: dead.Topic}))
}

// fail records the error of a span, if any.
func fail(span trace.Span, err error, failure string) {
	if err != nil && span.IsRecording() {
		span.SetAttributes(semconv.ErrorTypeKey.String(failure))
		span.SetStatus(codes.Error, text.OfError(err))
	}
}
