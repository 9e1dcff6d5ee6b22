package otel

import (
	"errors"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/watermill-outbox/observe"
)

const scope = "github.com/millrace-go/watermill-outbox/observe/otel"

// ObserverConfig configures NewObserver. The zero value is ready for use.
type ObserverConfig struct {
	// TracerProvider and MeterProvider; default: the global ones. A noop provider switches one of them off.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// Propagator carries the span context in metadata; default: the global one, or W3C Trace Context if none is set.
	Propagator propagation.TextMapPropagator
	// System is the attribute messaging.system; default "outbox". Set it to your broker's, such as "kafka".
	System string
}

func (c *ObserverConfig) setDefaults() {
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.Propagator == nil {
		c.Propagator = global{}
	}
	if c.System == "" {
		c.System = "outbox"
	}
}

// observer records spans and metrics of the handles that it is passed to.
type observer struct {
	cfg     ObserverConfig
	tracer  trace.Tracer
	metrics metrics
	sets    sets
}

var (
	_ observe.WriteObserver   = (*observer)(nil)
	_ observe.HandleObserver  = (*observer)(nil)
	_ observe.PublishObserver = (*observer)(nil)
	_ observe.DeadObserver    = (*observer)(nil)
)

// NewObserver returns an observer that records spans and metrics of the handles that it is passed to, any number of
// them (outbox.DBConfig.Observers). It is safe for concurrent use. NewObserver returns the errors of the MeterProvider.
func NewObserver(cfg ObserverConfig) (observe.Observer, error) {
	cfg.setDefaults()
	m, err := newMetrics(cfg.MeterProvider.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL)))
	if err != nil {
		return nil, fmt.Errorf("make instruments: %w", err)
	}
	return &observer{
		cfg: cfg, metrics: m, tracer: cfg.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)),
	}, nil
}

// errorType returns the attribute error.type of an error without another name: the type of the first error that is not
// only joined or wrapped.
func errorType(err error) string {
	for {
		joined, ok := err.(interface{ Unwrap() []error })
		if !ok || len(joined.Unwrap()) == 0 {
			break
		}
		err = joined.Unwrap()[0]
	}
	if err == nil {
		err = errors.New("")
	}
	return semconv.ErrorType(err).Value.AsString()
}
