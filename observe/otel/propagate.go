package otel

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// global is the global propagator at the time of the call, or W3C Trace Context while none is set.
type global struct{}

func (global) now() propagation.TextMapPropagator {
	if set := otel.GetTextMapPropagator(); len(set.Fields()) > 0 {
		return set
	}
	return propagation.TraceContext{}
}

func (g global) Inject(ctx context.Context, to propagation.TextMapCarrier) { g.now().Inject(ctx, to) }
func (g global) Extract(ctx context.Context, from propagation.TextMapCarrier) context.Context {
	return g.now().Extract(ctx, from)
}
func (g global) Fields() []string { return g.now().Fields() }

// stored returns ctx with the span context in a message's metadata, if any, and that span context.
func (o *observer) stored(ctx context.Context, msg *message.Message) (context.Context, trace.SpanContext) {
	if len(msg.Metadata) == 0 {
		return ctx, trace.SpanContext{}
	}
	with := o.cfg.Propagator.Extract(ctx, propagation.MapCarrier(msg.Metadata))
	of := trace.SpanContextFromContext(with)
	if !of.IsRemote() { // it is from ctx: the message has no span context
		return ctx, trace.SpanContext{}
	}
	return with, of
}

// store writes the span context of ctx to the message's metadata.
func (o *observer) store(ctx context.Context, msg *message.Message) {
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	o.cfg.Propagator.Inject(ctx, propagation.MapCarrier(msg.Metadata))
}
