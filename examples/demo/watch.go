package demo

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/observe/otel"
	"github.com/millrace-go/watermill-outbox/observe/prom"
)

// watch collects the monitoring of the day: the metrics of the service, its traces, and the page.
type watch struct {
	page     *page
	registry *prometheus.Registry
	counts   prometheus.Collector
	traces   observe.Observer
	spans    *tracetest.SpanRecorder

	mu    sync.Mutex
	worst map[string]float64
}

func newWatch(db *outbox.DB) (*watch, error) {
	w := &watch{registry: prometheus.NewRegistry(), spans: tracetest.NewSpanRecorder(), worst: map[string]float64{}}
	var err error
	if w.counts, err = prom.NewObserver(prom.ObserverConfig{}); err != nil {
		return nil, err
	}
	waiting, err := prom.NewCollector(db, prom.CollectorConfig{}, nil)
	if err != nil {
		return nil, err
	}
	w.traces, err = otel.NewObserver(otel.ObserverConfig{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.spans)),
	})
	if err != nil {
		return nil, err
	}
	w.registry.MustRegister(w.counts, waiting)
	if w.page, err = newPage(db); err != nil {
		return nil, err
	}
	return w, nil
}

// observers are those for the handle of the service; none if it is not watched.
func (w *watch) observers() []observe.Observer {
	if w == nil {
		return nil
	}
	return []observe.Observer{w.counts, w.traces}
}

// gauges lists the gauges whose worst values are shown.
var gauges = []string{
	`outbox_messages{state="ready"}`, "outbox_oldest_message_age_seconds", `outbox_topic_paused{by="forwarder"}`,
}

// scrape records the worst values, a few times a second.
func (w *watch) scrape(ctx context.Context) {
	for pause(ctx, 250*time.Millisecond) == nil {
		if now, err := w.metrics(); err == nil {
			w.mu.Lock()
			for _, name := range gauges {
				w.worst[name] = max(w.worst[name], now[name])
			}
			w.mu.Unlock()
		}
	}
}

// metrics returns all series of the registry, summed over all labels but those with few values; for histograms it
// returns their p99.
func (w *watch) metrics() (map[string]float64, error) {
	families, err := w.registry.Gather()
	if err != nil {
		return nil, err
	}
	found := map[string]float64{}
	for _, f := range families {
		if f.GetType() == dto.MetricType_HISTOGRAM {
			found[f.GetName()] = within(0.99, f.GetMetric())
			continue
		}
		for _, m := range f.GetMetric() {
			found[f.GetName()+kind(m)] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return found, nil
}

func kind(m *dto.Metric) string {
	for _, l := range m.GetLabel() {
		switch l.GetName() {
		case "result", "outcome", "state", "by":
			return fmt.Sprintf("{%s=%q}", l.GetName(), l.GetValue())
		}
	}
	return ""
}

// within returns the bound under which a share of all values lies.
func within(share float64, all []*dto.Metric) float64 {
	var count float64
	below := map[float64]float64{}
	for _, m := range all {
		count += float64(m.GetHistogram().GetSampleCount())
		for _, b := range m.GetHistogram().GetBucket() {
			below[b.GetUpperBound()] += float64(b.GetCumulativeCount())
		}
	}
	bound := math.Inf(1)
	for b, n := range below {
		if n >= share*count {
			bound = min(bound, b)
		}
	}
	return bound
}

// show prints the metrics and one trace.
func (w *watch) show(out io.Writer) error {
	now, err := w.metrics()
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprint(out, "\nMetrics of the service, as Prometheus would see them:\n\n")
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, name := range []string{
		`outbox_handled_messages_total{outcome="processed"}`, `outbox_handled_messages_total{outcome="duplicate"}`,
		"outbox_written_messages_total", `outbox_publishes_total{result="published"}`,
		`outbox_publishes_total{result="unavailable"}`, "outbox_deaths_total",
	} {
		fmt.Fprintf(t, "  %s\t%s\n", name, number(int(now[name])))
	}
	for _, name := range gauges {
		fmt.Fprintf(t, "  %s\t%s now, %s at most\n", name, short(name, now[name]), short(name, w.worst[name]))
	}
	for _, name := range []string{
		"outbox_lag_seconds", "outbox_publish_duration_seconds", "outbox_handle_duration_seconds",
		"outbox_settle_duration_seconds",
	} {
		fmt.Fprintf(t, "  %s\tp99 %s\n", name, short(name, now[name]))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return showTrace(out, w.spans.Ended())
}

func short(name string, v float64) string {
	if strings.HasSuffix(name, "_seconds") {
		return time.Duration(v * float64(time.Second)).Round(time.Millisecond / 10).String()
	}
	return number(int(v))
}
