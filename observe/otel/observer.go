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
	// TracerProvider creates the spans; default: the global provider. A noop provider switches traces off.
	TracerProvider trace.TracerProvider
	// MeterProvider creates the instruments; default: the global provider. A noop provider switches metrics off.
	MeterProvider metric.MeterProvider
	// Propagator writes span contexts to the metadata of messages, and reads them; default: the global propagator, or W3C
	// Trace Context if none is set.
	Propagator propagation.TextMapPropagator
	// System is the value of the attribute messaging.system; default "outbox". Set it to the name of your broker, such as
	// "kafka".
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

// NewObserver returns an observer that records spans and metrics. Pass it to any number of handles
// (outbox.DBConfig.Observers). It is safe for concurrent use. NewObserver returns an error if the MeterProvider cannot
// create an instrument.
func NewObserver(cfg ObserverConfig) (observe.Observer, error) {
	cfg.setDefaults()
	m, err := newMetrics(cfg.MeterProvider.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL)))
	if err != nil {
		return nil, fmt.Errorf("create instruments: %w", err)
	}
	return &observer{
		cfg: cfg, metrics: m, tracer: cfg.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)),
	}, nil
}

// errorType returns the value of the attribute error.type for an error without a verdict or outcome: the Go type of the
// first error inside joins and wraps.
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
