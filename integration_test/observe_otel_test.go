package integration_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	outboxmw "github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/observe/otel"
	"github.com/millrace-go/watermill-outbox/queue"
)

// telemetry is the telemetry of all services of a test.
type telemetry struct {
	observe.Observer
	tracer trace.Tracer
	spans  *tracetest.SpanRecorder
	reader *sdkmetric.ManualReader
}

func newTelemetry(t testing.TB, cfg otel.ObserverConfig, opts ...sdktrace.TracerProviderOption) telemetry {
	t.Helper()
	tel := telemetry{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	tracers := sdktrace.NewTracerProvider(append(opts, sdktrace.WithSpanProcessor(tel.spans))...)
	cfg.TracerProvider, cfg.MeterProvider = tracers, sdkmetric.NewMeterProvider(sdkmetric.WithReader(tel.reader))
	tel.tracer = tracers.Tracer("test")
	var err error
	tel.Observer, err = otel.NewObserver(cfg)
	require.NoError(t, err)
	return tel
}

// ended waits for n ended spans of a name and returns them.
func (tel telemetry) ended(t testing.TB, name string, n int) (found []sdktrace.ReadOnlySpan) {
	t.Helper()
	eventually(t, func() bool {
		found = slices.DeleteFunc(tel.spans.Ended(), func(s sdktrace.ReadOnlySpan) bool { return s.Name() != name })
		return len(found) >= n
	}, "%d spans %s", n, name)
	require.Len(t, found, n, name)
	return found
}

// attributesOf returns the attributes of a span as text.
func attributesOf(of []attribute.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range of {
		m[string(kv.Key)] = kv.Value.String()
	}
	return m
}

// childOf checks that child is a child of parent.
func childOf(t testing.TB, child, parent sdktrace.ReadOnlySpan) {
	t.Helper()
	assert.Equal(t, parent.SpanContext().TraceID(), child.SpanContext().TraceID(), "%s is in the trace of %s",
		child.Name(), parent.Name())
	assert.Equal(t, parent.SpanContext().SpanID(), child.Parent().SpanID(), "%s is a child of %s", child.Name(),
		parent.Name())
}

// linkedTo checks that s has exactly one link, to to.
func linkedTo(t testing.TB, s, to sdktrace.ReadOnlySpan) {
	t.Helper()
	require.Len(t, s.Links(), 1, s.Name())
	assert.Equal(t, to.SpanContext().SpanID(), s.Links()[0].SpanContext.SpanID(), "%s is linked to %s",
		s.Name(), to.Name())
}

// TestTraceAcrossTwoServices: a request to one service and the resulting work in another are one trace, through two
// databases and a broker.
func TestTraceAcrossTwoServices(t *testing.T) {
	parallel(t)
	tel := newTelemetry(t, otel.ObserverConfig{System: "nats"})
	url := natsServer(t).URL()
	_, _, prefix := natsStream(t, url, nil)
	orders, bookings := prefix+"orders", prefix+"bookings"

	shop := newPgxHandle(t, newMigratedDatabase(t)).configured(t, outbox.DBConfig{})
	shop = shop.seenBy(t, tel.Observer)
	toNATS, err := forwarder.New(shop.db, natsPublisher(t, url), quickConfig(), nil)
	require.NoError(t, err)
	runInBackground(t, toNATS)

	booking := newPgxHandle(t, newMigratedDatabase(t)).seenBy(t, tel.Observer)
	sub, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{URL: url, Unmarshaler: &wmnats.NATSMarshaler{}}, nil)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	require.NoError(t, err)
	pub := newOutboxPublisher(t, booking)
	router.AddHandler("book", orders, sub, bookings, pub, book(booking)).AddMiddleware(
		stackFor(t, pub, outboxmw.StackConfig{Service: "booking"}, nil)...)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	t.Cleanup(func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
	})
	<-router.Running()
	atTheEnd := startForwarder(t, booking, quickConfig())

	order := newMessage("order")
	ctx, request := tel.tracer.Start(t.Context(), "POST /orders")
	require.NoError(t, outbox.InTx(ctx, shop.db, func(ctx context.Context) error {
		return newOutboxPublisher(t, shop).PublishContext(ctx, orders, order)
	}))
	request.End()
	atTheEnd.arrives(t, "booked "+order.UUID)

	root := tel.ended(t, "POST /orders", 1)[0]
	created, sent := tel.ended(t, "create "+orders, 1)[0], tel.ended(t, "send "+orders, 1)[0]
	processed := tel.ended(t, "process "+orders, 1)[0]
	createdNext, sentNext := tel.ended(t, "create "+bookings, 1)[0], tel.ended(t, "send "+bookings, 1)[0]
	childOf(t, created, root)
	childOf(t, sent, created)
	childOf(t, processed, created)
	linkedTo(t, processed, created)
	childOf(t, createdNext, processed)
	childOf(t, sentNext, createdNext)

	for span, want := range map[sdktrace.ReadOnlySpan]struct {
		kind      trace.SpanKind
		operation string
	}{
		created: {trace.SpanKindProducer, "create"}, sent: {trace.SpanKindClient, "send"},
		processed: {trace.SpanKindConsumer, "process"},
	} {
		assert.Equal(t, want.kind, span.SpanKind())
		of := attributesOf(span.Attributes())
		for key, value := range map[string]string{
			"messaging.system": "nats", "messaging.operation.name": want.operation, "messaging.operation.type": want.operation,
			"messaging.destination.name": orders, "messaging.message.id": order.UUID, "messaging.message.body.size": "5",
		} {
			assert.Equal(t, value, of[key], "%s: %s", span.Name(), key)
		}
		assert.Equal(t, codes.Unset, span.Status().Code)
	}
	of := attributesOf(processed.Attributes())
	assert.Equal(t, "booking book processed",
		strings.Join([]string{of["messaging.consumer.group.name"], of["outbox.handler"], of["outbox.outcome"]}, " "))
}

// TestLaterTriesHaveTracesOfTheirOwn: the first try belongs to the writer's trace, later ones link to it, although each
// try of an outage is attempt 1. Whichever succeeds, the message is processed in the writer's trace.
func TestLaterTriesHaveTracesOfTheirOwn(t *testing.T) {
	parallel(t)
	for verdict, failure := range map[string]error{"retry": errRefused, "unavailable": errDown} {
		tel := newTelemetry(t, otel.ObserverConfig{})
		h := newPgxHandle(t, newMigratedDatabase(t)).seenBy(t, tel.Observer)
		var came message.Metadata
		tries := 0
		w := startForwarderOn(t, h, classifyingConfig(), func(_ string, msg *message.Message) error {
			if tries++; tries < 3 {
				return failure
			}
			came = msg.Metadata
			return nil
		})
		w.publish(t, "orders", "K", "late")
		w.arrives(t, "late")

		created, sent := tel.ended(t, "create orders", 1)[0], tel.ended(t, "send orders", 3)
		childOf(t, sent[0], created)
		assert.Empty(t, sent[0].Links())
		for i, s := range sent {
			of := attributesOf(s.Attributes())
			attempt := map[string]int{"retry": i + 1, "unavailable": 1}[verdict]
			assert.Equal(t, itoa(attempt), of["outbox.attempt"], "%s: try %d", verdict, i)
			if i > 0 {
				linkedTo(t, s, created)
				assert.False(t, s.Parent().IsValid(), "it starts a trace")
				assert.NotEqual(t, created.SpanContext().TraceID(), s.SpanContext().TraceID())
			}
			if i < 2 {
				assert.Equal(t, sdktrace.Status{Code: codes.Error, Description: failure.Error()}, s.Status())
				assert.Equal(t, verdict+" "+verdict, of["error.type"]+" "+of["outbox.verdict"])
			} else {
				assert.Equal(t, codes.Unset, s.Status().Code)
			}
		}
		want := fmt.Sprintf("00-%s-%s-01", created.SpanContext().TraceID(), created.SpanContext().SpanID())
		assert.Equal(t, want, came["traceparent"], "a consumer gets the writer's trace")
	}
}

// TestWhatIsNotSampled: no span is exported, and no consumer starts a trace of its own.
func TestWhatIsNotSampled(t *testing.T) {
	parallel(t)
	tel := newTelemetry(t, otel.ObserverConfig{}, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	h := newPgxHandle(t, newMigratedDatabase(t)).seenBy(t, tel.Observer)
	w := startForwarder(t, h, quickConfig())
	w.publish(t, "orders", "", "a")
	w.arrives(t, "a")
	w.idle(t)
	assert.Empty(t, tel.spans.Ended())
	assert.Equal(t, "00", value[string](t, h, "select right(metadata->>'traceparent', 2) from outbox"))
}

// TestDispatcherIsTraced: a stored message is processed in the trace of its metadata.
func TestDispatcherIsTraced(t *testing.T) {
	t.Parallel()
	tel := newTelemetry(t, otel.ObserverConfig{})
	h := newPgxHandle(t, newMigratedDatabase(t)).seenBy(t, tel.Observer)
	store, err := queue.NewStore(h.db, queue.StoreConfig{}, nil)
	require.NoError(t, err)
	item := queue.Item{ID: queue.ID{Source: "shop", MessageID: "1"}, Topic: "payment", Payload: []byte("p")}
	item.Metadata = message.Metadata{"traceparent": "00-01000000000000000000000000000000-0200000000000000-01"}
	_, err = store.Enqueue(t.Context(), item)
	require.NoError(t, err)
	pub := newOutboxPublisher(t, h)
	dispatcher, err := queue.NewDispatcher(store, queue.DispatcherConfig{
		Service: "booking", Handlers: map[string]queue.Handler{
			"payment": {Handle: func(ctx context.Context, _ *queue.Message) error {
				return pub.PublishContext(ctx, "bookings", newMessage("x"))
			}},
		},
	}, nil)
	require.NoError(t, err)
	require.NoError(t, dispatcher.Drain(t.Context()))
	processed := tel.ended(t, "process payment", 1)[0]
	assert.Equal(t, "01000000000000000000000000000000 0200000000000000",
		processed.SpanContext().TraceID().String()+" "+processed.Parent().SpanID().String())
	childOf(t, tel.ended(t, "create bookings", 1)[0], processed)
}

// TestTelemetryMetrics: instruments and attributes follow the conventions.
func TestTelemetryMetrics(t *testing.T) {
	parallel(t)
	tel := newTelemetry(t, otel.ObserverConfig{System: "kafka"})
	h := newPgxHandle(t, newMigratedDatabase(t)).seenBy(t, tel.Observer)
	w := startForwarderOn(t, h, classifyingConfig(), func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "malformed" {
			return errMalformed
		}
		return nil
	})
	w.publish(t, "orders", "", "a", "b", "malformed")
	w.arrives(t, "a", "b")
	h.exec(t, `insert into outbox (uuid, topic, payload, created_at, metadata) values
		('old', 'orders', 'old', now() - interval '2 hours', '{}'), ('meant', 'orders', 'meant', now() - interval '2 days', '{"_watermill_delayed_for": "48h"}')`)
	w.arrives(t, "old", "meant")
	w.idle(t)
	handle := chain(func(*message.Message) ([]*message.Message, error) {
		return nil, errHandler
	}, stack(t, h, outboxmw.StackConfig{Service: "booking"})...)
	_, err := handle(newMessage("x"))
	require.ErrorIs(t, err, errHandler)

	want := map[string]string{
		"outbox.dead.messages{send}":             "1",
		"messaging.client.sent.messages{create}": "3", "messaging.client.sent.messages{send}": "4",
		"messaging.client.sent.messages{send permanent}": "1",
		"messaging.client.operation.duration{send}":      "4", "messaging.client.operation.duration{send permanent}": "1",
		"messaging.client.consumed.messages{process failed}": "1", "messaging.process.duration{process failed}": "1",
		"outbox.message.lag{send}": "3",
	}
	found := map[string]string{}
	eventually(t, func() bool {
		all := tel.points(t)
		for point := range want {
			found[point] = all[point]
		}
		return maps.Equal(want, found)
	}, "%v is recorded: %v", want, found)
	assert.InDelta(t, (2 * time.Hour).Seconds(), tel.lag(t), patience.Seconds(), "the delayed message is not late")
}

// points returns current measurements by instrument, operation and error: a sum, or the number of values.
func (tel telemetry) points(t testing.TB) map[string]string {
	t.Helper()
	found := map[string]string{}
	record := func(name string, set attribute.Set, value any) {
		of := attributesOf(set.ToSlice())
		assert.Equal(t, "kafka", of["messaging.system"])
		assert.Equal(t, of["messaging.operation.name"], of["messaging.operation.type"])
		found[name+"{"+strings.TrimSpace(of["messaging.operation.name"]+" "+of["error.type"])+"}"] = fmt.Sprint(value)
	}
	for _, m := range tel.collect(t) {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				record(m.Name, p.Attributes, p.Value)
			}
		case metricdata.Histogram[float64]:
			assert.Equal(t, "s", m.Unit, m.Name)
			for _, p := range data.DataPoints {
				record(m.Name, p.Attributes, p.Count)
			}
		}
	}
	return found
}

func (tel telemetry) lag(t testing.TB) (sum float64) {
	t.Helper()
	for _, m := range tel.collect(t) {
		if data, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == "outbox.message.lag" {
			for _, p := range data.DataPoints {
				sum += p.Sum
			}
		}
	}
	return sum
}

func (tel telemetry) collect(t testing.TB) (all []metricdata.Metrics) {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, tel.reader.Collect(t.Context(), &rm))
	for _, s := range rm.ScopeMetrics {
		all = append(all, s.Metrics...)
	}
	return all
}

// ends records calls of observers of transactions and writes.
type ends struct {
	mu     sync.Mutex
	txs    []meter.TxEnd
	writes []observe.WriteEnd
}

type startKey struct{}

func (e *ends) TxStart(ctx context.Context, start meter.TxStart) context.Context {
	return context.WithValue(ctx, startKey{}, start)
}

func (e *ends) TxEnd(ctx context.Context, end meter.TxEnd) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ctx.Value(startKey{}) == (meter.TxStart{DB: end.DB}) {
		e.txs = append(e.txs, end)
	}
}

func (e *ends) WriteStart(ctx context.Context, start observe.WriteStart) context.Context {
	for _, msg := range start.Messages {
		msg.Metadata.Set("traced", start.Topic)
	}
	return context.WithValue(ctx, startKey{}, start.Topic)
}

func (e *ends) WriteEnd(ctx context.Context, end observe.WriteEnd) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ctx.Value(startKey{}) == end.Topic {
		e.writes = append(e.writes, end)
	}
}

func TestObserversAreTold(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		seen := &ends{}
		h = h.seenBy(t, seen)
		pub := newOutboxPublisher(t, h)
		work := func(fail error) error {
			return outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
				require.NoError(t, pub.PublishContext(ctx, "published", newMessage("12"), newMessage("345")))
				require.NoError(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error {
					return (*core.Publisher)(pub).Capture(ctx, "captured", newMessage("6789"))
				}))
				return fail
			})
		}
		require.NoError(t, work(nil))
		require.ErrorIs(t, work(errUndo), errUndo)
		require.Len(t, seen.txs, 2, "a savepoint does not count")
		require.NoError(t, seen.txs[0].Err)
		require.ErrorIs(t, seen.txs[1].Err, errUndo)
		assert.Equal(t, h.name, seen.txs[0].DB)
		assert.Positive(t, seen.txs[0].Duration)
		require.Len(t, seen.writes, 4)
		undone := errUndo
		if h.sql != nil {
			undone = nil // rolled back before it was written
		}
		for i, want := range []observe.WriteEnd{
			{DB: h.name, Topic: "published", Messages: 2, Bytes: 5}, {DB: h.name, Topic: "captured", Messages: 1, Bytes: 4},
			{DB: h.name, Topic: "published", Messages: 2, Bytes: 5},
			{DB: h.name, Topic: "captured", Messages: 1, Bytes: 4, Err: undone},
		} {
			got := seen.writes[i]
			got.Duration = 0
			assert.Equal(t, want, got)
		}
		assert.Equal(t, 3, h.count(t, "select count(*) from outbox where metadata->>'traced' = topic"),
			"metadata set by an observer is stored")
	})
}
