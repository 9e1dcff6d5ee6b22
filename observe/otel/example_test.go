package otel_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/observe/otel"
)

// The trace of a request continues in the handler of its message, in another process and after any number of attempts,
// because the span context is stored with the message. Programs pass the observer to a handle, in
// outbox.DBConfig.Observers. Here the example calls it as a handle would.
func Example() {
	seen, err := otel.NewObserver(otel.ObserverConfig{System: "nats"})
	if err != nil {
		log.Fatal(err)
	}
	request := trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	}))

	msg := message.NewMessage("order-1", nil)
	seen.(observe.WriteObserver).WriteStart(request,
		observe.WriteStart{Topic: "orders", Messages: []*message.Message{msg}})
	fmt.Println(msg.Metadata.Get("traceparent"))

	handler := seen.(observe.HandleObserver).HandleStart(context.Background(),
		observe.HandleStart{Topic: "orders", Message: msg})
	fmt.Println(trace.SpanContextFromContext(handler).TraceID())
	// Output:
	// 00-01000000000000000000000000000000-0200000000000000-01
	// 01000000000000000000000000000000
}
