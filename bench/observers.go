package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/observe/otel"
	"github.com/millrace-go/watermill-outbox/observe/prom"
)

const observedRounds = 3

// observed is the processor time that this process spends on a message from InTx to the settled row, with and without
// observers. Rounds are interleaved, and the median counts.
func (b *bench) observed(ctx context.Context) (string, error) {
	sides := []struct {
		name string
		make func() (observe.Observer, func(context.Context) error, error)
	}{
		{"none", nil},
		{"observe/prom", func() (observe.Observer, func(context.Context) error, error) {
			o, err := prom.NewObserver(prom.ObserverConfig{})
			return o, nil, err
		}},
		{"observe/otel with metrics, nothing sampled", func() (observe.Observer, func(context.Context) error, error) {
			return tracing(sdktrace.NeverSample())
		}},
		{"with each span made, batched and thrown away", func() (observe.Observer, func(context.Context) error, error) {
			return tracing(sdktrace.AlwaysSample())
		}},
	}
	found := make([][]float64, len(sides))
	for range observedRounds {
		for i, s := range sides {
			var observers []observe.Observer
			var end func(context.Context) error
			if s.make != nil {
				o, stop, err := s.make()
				if err != nil {
					return "", err
				}
				observers, end = []observe.Observer{o}, stop
			}
			micros, err := b.ownCPU(ctx, observers, end)
			if err != nil {
				return "", fmt.Errorf("%s: %w", s.name, err)
			}
			found[i] = append(found[i], micros)
		}
	}
	base := median(found[0])
	text := fmt.Sprintf("%.1f us of CPU of this process per message", base)
	for i, s := range sides[1:] {
		text += fmt.Sprintf("; %s %+.1f", s.name, median(found[i+1])-base)
	}
	return text, nil
}

// tracing returns an observer whose spans and metrics are discarded.
func tracing(sampler sdktrace.Sampler) (observe.Observer, func(context.Context) error, error) {
	traces := sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler), sdktrace.WithBatcher(nowhere{}))
	metrics := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	o, err := otel.NewObserver(otel.ObserverConfig{TracerProvider: traces, MeterProvider: metrics})
	return o, func(ctx context.Context) error { return errors.Join(traces.Shutdown(ctx), metrics.Shutdown(ctx)) }, err
}

// nowhere is an exporter that discards everything.
type nowhere struct{}

func (nowhere) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (nowhere) Shutdown(context.Context) error                             { return nil }

// ownCPU writes and forwards messages, and returns the processor time per message in microseconds.
func (b *bench) ownCPU(
	ctx context.Context, observers []observe.Observer, end func(context.Context) error,
) (float64, error) {
	d, err := b.newDatabase(ctx)
	if err != nil {
		return 0, err
	}
	defer d.drop()
	if d.db, err = outbox.FromPgx(d.pool, outbox.DBConfig{Observers: observers}, nil); err != nil {
		return 0, err
	}
	pub, err := outbox.NewPublisher(d.db, outbox.PublisherConfig{}, nil)
	if err != nil {
		return 0, err
	}
	n := b.scaled(costMessages)
	s := newSink(n)
	f, stop, err := d.forward(ctx, s, forwarder.Config{})
	if err != nil {
		return 0, err
	}
	defer stop()
	from, err := cpuOf("/proc/self/stat")
	if err != nil {
		return 0, err
	}
	for first := 0; first < n; first += costPerTx {
		err := outbox.InTx(ctx, d.db, func(ctx context.Context) error {
			return pub.PublishContext(ctx, topic, messagesOf(first, min(first+costPerTx, n))...)
		})
		if err != nil {
			return 0, err
		}
	}
	err = errors.Join(f.Drain(ctx), stop(), s.check())
	if end != nil {
		err = errors.Join(err, end(ctx))
	}
	to, failed := cpuOf("/proc/self/stat")
	return float64((to.own - from.own).Nanoseconds()) / float64(time.Microsecond) / float64(n), errors.Join(err, failed)
}
