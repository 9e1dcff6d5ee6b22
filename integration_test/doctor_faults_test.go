//go:build unix

package integration_test

import (
	"cmp"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	asked "github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/nats"
	"github.com/millrace-go/watermill-outbox/observe/prom"
)

// fault is one fault of a night.
type fault struct {
	name     string // what happened
	check    string // the finding
	severity admin.Severity
	evidence string // a regular expression for the finding's evidence; "" = any
	alert    string // of dashboards/alerts.yaml; "" = none
	gone     bool   // the process that exports the metrics ends too
	always   bool   // also injected by make test
	inject   func(n *night)
	did      string // the cure that was applied; "" = the printed statement
	cure     func(n *night, f admin.Finding)
}

// night is one fault in its own database.
type night struct {
	*testing.T
	h handle
	world
	fast    atomic.Bool // the publisher, or the handler
	mend    func()
	feed    *feed
	brokers []asked.Checker // brokers for Doctor to check
}

func faultsOfANight() []fault {
	return slices.Concat(faultsOfTheOutbox, faultsOfPartitions, faultsOfTheQueue, faultsOfTheBroker, faultsOfTheServer)
}

// TestNightOfFaults injects each fault, and checks the finding, its severity, the alert and the page's heading; that
// findings and alerts do not contradict each other; and that the cure works.
func TestNightOfFaults(t *testing.T) {
	t.Parallel()
	for _, f := range faultsOfANight() {
		t.Run(f.name, func(t *testing.T) {
			if !f.always {
				extended(t)
			}
			t.Parallel()
			f.happens(t)
		})
	}
}

// happens injects one fault, and checks that it is found, shown and cured.
func (f fault) happens(t *testing.T) {
	n := &night{T: t, h: newPgxHandle(t, newMigratedDatabase(t))}
	f.inject(n)
	var found admin.Finding
	var list []admin.Finding
	eventually(t, func() bool {
		var err error
		list, err = newAdmin(t, n.h).Doctor(t.Context(), n.brokers...)
		require.NoError(t, err)
		i := slices.IndexFunc(list, func(x admin.Finding) bool { return x.Check == f.check && x.Severity == f.severity })
		if i >= 0 {
			found = list[i]
		}
		return i >= 0
	}, "doctor finds %s", f.check)
	t.Log(found)
	assert.Regexp(t, f.evidence, found.Evidence)
	var heading string
	title := strings.ToUpper(found.Title[:1]) + found.Title[1:]
	eventually(t, func() bool { // on a busy machine the page may lag
		body := newSite(t, n.h, ui.Access{}, n.brokers...).get("").body
		heading = headingOf(t, body)
		return strings.Contains(textOf(t, body), title) && (f.severity == admin.Info || heading != "Healthy")
	}, "the page shows it: %s", title)
	n.agree(list, f)
	cure := f.cure
	if cure == nil {
		cure = func(n *night, f admin.Finding) { order(n.T, n.h, f, "", "--dry-run"); n.runs(f) }
	}
	t.Log("the cure:", cmp.Or(f.did, "the statement that is printed"))
	cure(n, found)
	if left := n.cured(f); f.severity > admin.Info && !left {
		after := headingOf(t, newSite(t, n.h, ui.Access{}, n.brokers...).get("").body)
		assert.False(t, strings.HasPrefix(after, title), after)
	}
}

// cured waits until Doctor no longer finds the fault, and reports whether a less severe finding remains.
func (n *night) cured(f fault) (left bool) {
	n.Helper()
	eventually(n, func() bool {
		found, ok := findings(n, n.h, n.brokers...)[f.check] // the worst one
		left = ok
		return !ok || found.Severity < f.severity
	}, "doctor no longer finds %s", f.check)
	return left
}

// runs runs the statement that a finding prints.
func (n *night) runs(f admin.Finding) {
	n.Helper()
	s := statementOf.FindStringSubmatch(": " + f.Cure)
	require.Len(n, s, 2, "no statement in %q", f.Cure)
	n.h.exec(n, s[1])
}

// agree checks that alerts and findings agree on the state of the database.
func (n *night) agree(found []admin.Finding, f fault) {
	n.Helper()
	collector := newCollector(n, n.h, prom.CollectorConfig{})
	alerts, known := firing(n, f.gone, collector)
	if !known {
		return
	}
	var names []string
	for _, a := range alerts {
		names = append(names, a["alertname"])
		check, named := a["finding"]
		if !named || f.gone {
			continue
		}
		assert.True(n, slices.ContainsFunc(found, func(x admin.Finding) bool {
			return x.Check == check && x.Severity >= severityOf(n, a["severity"]) && slices.Contains(x.Alerts, a["alertname"])
		}), "alert %v has no finding: %v", a, found)
	}
	for _, x := range found {
		if x.Severity == admin.Critical && len(x.Alerts) > 0 && !f.gone {
			assert.True(n, slices.ContainsFunc(names, func(name string) bool { return slices.Contains(x.Alerts, name) }),
				"finding %s has no alert: %v", x.Check, names)
		}
	}
	if f.alert != "" {
		assert.Contains(n, names, f.alert)
	}
}

func severityOf(t testing.TB, name string) (s admin.Severity) {
	t.Helper()
	require.NoError(t, s.UnmarshalText([]byte(name)))
	return s
}

var (
	headingShape = regexp.MustCompile(`(?s)<h1 id="verdict">.*?</i>(.*?)</h1>`)
	labelsShape  = regexp.MustCompile(`Labels:\{([^}]*)\}`)
	labelShape   = regexp.MustCompile(`(\w+)="([^"]*)"`)
	alertShape   = regexp.MustCompile(`- alert: (\w+)`)
)

func headingOf(t testing.TB, body string) string {
	t.Helper()
	m := headingShape.FindStringSubmatch(body)
	require.Len(t, m, 2, "no heading in %.300s", body)
	return html.UnescapeString(m[1])
}

// firing returns the labels of the alerts that fire half an hour after the metrics reached their current values, or, if
// gone, 20 minutes after the exporting process ended. Without promtool, which CI has, it returns false.
func firing(t testing.TB, gone bool, c prometheus.Collector) (alerts []map[string]string, known bool) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		require.NotEqual(t, "true", os.Getenv("CI"), "no promtool")
		return nil, false
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	require.NoError(t, err)
	rules, err := filepath.Abs("../dashboards/alerts.yaml")
	require.NoError(t, err)
	var b strings.Builder
	fmt.Fprintf(&b, "rule_files: [%q]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n", rules)
	lasts := "x40"
	if gone {
		lasts = "x10"
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			series := strings.ReplaceAll(f.GetName()+"{"+strings.Join(labels, ",")+"}", "'", "''")
			fmt.Fprintf(&b, "      - {series: '%s', values: '%s%s'}\n", series,
				strconv.FormatFloat(m.GetGauge().GetValue(), 'f', -1, 64), lasts)
		}
	}
	content, err := os.ReadFile(rules)
	require.NoError(t, err)
	b.WriteString("    alert_rule_test:\n")
	for _, name := range alertShape.FindAllStringSubmatch(string(content), -1) {
		fmt.Fprintf(&b, "      - {alertname: %s, eval_time: 30m}\n", name[1])
	}
	file := filepath.Join(t.TempDir(), "scraped.yaml")
	require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
	out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", file).CombinedOutput()
	if err == nil {
		return nil, true // no alert is expected
	}
	for _, m := range labelsShape.FindAllStringSubmatch(string(out), -1) {
		alert := map[string]string{}
		for _, l := range labelShape.FindAllStringSubmatch(m[1], -1) {
			alert[l[1]] = l[2]
		}
		alerts = append(alerts, alert)
	}
	require.NotEmpty(t, alerts, "%s", out)
	return alerts, true
}

// reads lets Doctor check a NATS server.
func (n *night) reads(url string) {
	n.Helper()
	reader, err := nats.NewTopicReader(nats.TopicReaderConfig{URL: url}, nil)
	require.NoError(n, err)
	n.Cleanup(func() { require.NoError(n, reader.Close()) })
	n.brokers = []asked.Checker{reader}
}

var faultsOfTheBroker = []fault{
	{
		name: "the inbox forgets after a day, and JetStream keeps messages for two", check: "inbox_retention",
		severity: admin.Warning, always: true, did: "`max_age` of the stream was lowered", inject: func(n *night) {
			url := natsServer(n).URL()
			kept := natsgo.StreamConfig{Storage: natsgo.FileStorage, MaxAge: 48 * time.Hour}
			js, stream, prefix := natsStream(n, url, func(c *natsgo.StreamConfig) { c.MaxAge = kept.MaxAge })
			n.reads(url)
			cfg := classifyingConfig()
			cfg.InboxRetention = 24 * time.Hour
			(*core.DB)(n.h.db).Consumes("shop/book", prefix+"orders") // the forwarder records it at its start
			n.forwards(cfg, nil)
			n.mend = func() {
				kept.Name, kept.Subjects, kept.MaxAge = stream, []string{stream + ".>"}, time.Hour
				_, err := js.UpdateStream(&kept)
				require.NoError(n, err)
			}
		},
		cure: func(n *night, _ admin.Finding) { n.mend() },
	},
	{
		name: "messages are published to a stream in memory", check: "broker", severity: admin.Critical,
		did: "the stream was made again with file storage", inject: func(n *night) {
			url := natsServer(n).URL()
			js, stream, prefix := natsStream(n, url, func(c *natsgo.StreamConfig) { c.Storage = natsgo.MemoryStorage })
			n.reads(url)
			n.h.publish(n, prefix+"orders", "", "1")
			runInBackground(n, newForwarder(n, n.h, natsPublisher(n, url), forwarder.Config{}))
			eventually(n, func() bool { return natsStored(n, js, stream) == 1 }, "it is published")
			n.mend = func() {
				require.NoError(n, js.DeleteStream(stream))
				_, err := js.AddStream(&natsgo.StreamConfig{
					Name: stream, Subjects: []string{stream + ".>"}, Storage: natsgo.FileStorage,
				})
				require.NoError(n, err)
			}
		},
		cure: func(n *night, _ admin.Finding) { n.mend() },
	},
}
