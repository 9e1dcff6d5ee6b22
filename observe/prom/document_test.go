package prom

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

const document = "../../docs/reference/metrics.md"

// families returns the metrics of an observer and of a collector, each with at least one value.
func families(t testing.TB) (of struct{ observer, collector []*dto.MetricFamily }) {
	t.Helper()
	gather := func(c prometheus.Collector) []*dto.MetricFamily {
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(c)
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		descs := make(chan *prometheus.Desc, 100)
		c.Describe(descs)
		if len(descs) != len(families) {
			t.Fatalf("%T exported %d of its %d metrics: the test must trigger all of them", c, len(families), len(descs))
		}
		return families
	}
	o, err := NewObserver(ObserverConfig{})
	if err != nil {
		t.Fatal(err)
	}
	all(o.(*observer))
	of.observer = gather(o)
	c := newShown(CollectorConfig{})
	c.sample = something()
	of.collector = gather(c)
	return of
}

// TestMetricsDocument compares docs/reference/metrics.md with the metrics; `make metrics` writes it.
func TestMetricsDocument(t *testing.T) {
	var page strings.Builder
	page.WriteString(`# Metrics

The metrics of [observe/prom](../../observe/prom/doc.go), written by ` + "`make metrics`" + `. Times are in seconds.
Every series has the label ` + "`db`" + `, the name of the handle, except the series of subscribers' partitions.
`)
	of := families(t)
	write := func(title, about string, families []*dto.MetricFamily) {
		fmt.Fprintf(&page, "\n## %s\n\n%s\n\n", title, about)
		for _, f := range families {
			labels := labelNames(f)
			if labels != "" {
				labels = " by " + labels
			}
			fmt.Fprintf(&page, "- `%s`, %s%s. %s\n", f.GetName(), strings.ToLower(f.GetType().String()), labels, f.GetHelp())
		}
	}
	write("State of the tables: Collector", "Each scrape reads the tables with up to four queries. The values are the "+
		"same in every process: use the maximum.", of.collector)
	write("Events: Observer", "Each process counts its own events: use the sum.", of.observer)

	if os.Getenv("OUTBOX_WRITE_METRICS") != "" {
		if err := os.WriteFile(document, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	is, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if string(is) != page.String() {
		t.Errorf("%s does not match the metrics: run make metrics", document)
	}
}

func labelNames(f *dto.MetricFamily) string {
	var names []string
	for _, l := range f.GetMetric()[0].GetLabel() {
		if l.GetName() == "db" {
			continue
		}
		name := l.GetName()
		if values := labelValues(f, name); len(values) > 1 || name == "by" {
			name += " (" + strings.Join(values, ", ") + ")"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// labelValues returns the values of a label with a fixed set of values.
func labelValues(f *dto.MetricFamily, name string) (values []string) {
	if !slices.Contains([]string{"result", "state", "outcome", "by"}, name) {
		return nil
	}
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == name && !slices.Contains(values, l.GetValue()) {
				values = append(values, l.GetValue())
			}
		}
	}
	slices.Sort(values)
	return values
}
