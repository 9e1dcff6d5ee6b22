package otel

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/watermill-outbox/observe"
)

func spanContext() trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	})
}

const traceparent = "00-01000000000000000000000000000000-0200000000000000-01"

// TestWithoutSetup: without providers and a propagator no span is recorded, and an incoming trace is passed on.
func TestWithoutSetup(t *testing.T) {
	made, err := NewObserver(ObserverConfig{})
	if err != nil {
		t.Fatal(err)
	}
	o := made.(*observer)
	msg := message.NewMessage("1", nil)
	o.WriteEnd(o.WriteStart(t.Context(), observe.WriteStart{Topic: "orders", Messages: []*message.Message{msg}}),
		observe.WriteEnd{Topic: "orders"})
	if len(msg.Metadata) != 0 {
		t.Errorf("metadata is %v although no span exists", msg.Metadata)
	}
	msg.Metadata = nil
	o.WriteStart(trace.ContextWithSpanContext(t.Context(), spanContext()), observe.WriteStart{
		Topic: "orders", Messages: []*message.Message{msg},
	})
	if msg.Metadata["traceparent"] != traceparent {
		t.Errorf("metadata is %v, want the span of the context", msg.Metadata)
	}
	ctx := o.PublishStart(t.Context(), observe.PublishStart{Topic: "orders", Message: msg, Attempt: 1})
	if trace.SpanContextFromContext(ctx).TraceID() != spanContext().TraceID() {
		t.Error("publishing does not continue the stored trace")
	}
	o.PublishEnd(ctx, observe.PublishEnd{Topic: "orders"})
	ctx = o.HandleStart(t.Context(), observe.HandleStart{Topic: "orders", Message: msg})
	if trace.SpanContextFromContext(ctx).TraceID() != spanContext().TraceID() {
		t.Error("handling does not continue the stored trace")
	}
	o.HandleEnd(ctx, observe.HandleEnd{Topic: "orders", Outcome: observe.Mismatch})
	o.HandleEnd(ctx, observe.HandleEnd{Topic: "orders", Outcome: observe.Failed, Err: errors.New("failed")})
	o.MessageDead(ctx, observe.MessageDead{Topic: "orders"})
	for _, ctx := range []context.Context{t.Context()} { // ends without a start
		o.WriteEnd(ctx, observe.WriteEnd{Err: errors.Join(nil, errors.New("a"))})
		o.PublishEnd(ctx, observe.PublishEnd{Err: errors.New("a")})
		o.HandleEnd(ctx, observe.HandleEnd{})
	}
}

func TestGlobalPropagator(t *testing.T) {
	was := otel.GetTextMapPropagator()
	defer otel.SetTextMapPropagator(was)
	made, err := NewObserver(ObserverConfig{})
	if err != nil {
		t.Fatal(err)
	}
	o := made.(*observer)
	ctx := trace.ContextWithSpanContext(t.Context(), spanContext())
	store := func() message.Metadata {
		msg := message.NewMessage("1", nil)
		o.store(ctx, msg)
		return msg.Metadata
	}
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator())
	if store()["traceparent"] != traceparent {
		t.Error("W3C Trace Context is not used although no propagator is set")
	}
	otel.SetTextMapPropagator(propagation.Baggage{})
	if m := store(); len(m) != 0 {
		t.Errorf("a propagator set later is not used: %v", m)
	}
}

func TestErrorType(t *testing.T) {
	plain := errors.New("a")
	for _, err := range []error{plain, fmt.Errorf("b: %w", plain), errors.Join(nil, plain, errors.New("c")), nil} {
		if got := errorType(err); got != "*errors.errorString" {
			t.Errorf("error.type of %v is %s", err, got)
		}
	}
}
