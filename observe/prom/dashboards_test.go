package prom

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

const dashboards = "../../dashboards"

var (
	metricName = regexp.MustCompile(`\boutbox_[a-z0-9_]+`)
	selector   = regexp.MustCompile(`\b(outbox_[a-z0-9_]+)\{([^}]*)\}`)
	condition  = regexp.MustCompile(`(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"`)
)

// TestDashboardsNameExistingMetrics: dashboards refer only to metrics, labels and states that this package exports, and
// show almost all of them.
func TestDashboardsNameExistingMetrics(t *testing.T) {
	known := map[string]*dto.MetricFamily{}
	of := families(t)
	for _, f := range append(of.observer, of.collector...) {
		known[f.GetName()] = f
		if f.GetType() == dto.MetricType_HISTOGRAM {
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				known[f.GetName()+suffix] = f
			}
		}
	}
	files, err := filepath.Glob(dashboards + "/*")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	shown := map[string]bool{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(content), `\"`, `"`) // JSON escapes quotes
		for _, name := range metricName.FindAllString(text, -1) {
			if known[name] == nil {
				t.Errorf("%s names %s, which is not exported", file, name)
			} else if filepath.Base(file) != "alerts_test.yaml" {
				shown[known[name].GetName()] = true
			}
		}
		for _, s := range selector.FindAllStringSubmatch(text, -1) {
			if known[s[1]] == nil {
				continue
			}
			for _, c := range condition.FindAllStringSubmatch(s[2], -1) {
				checkCondition(t, file, s[0], known[s[1]], c[1], c[3])
			}
		}
	}
	// Panels show figures from the tables instead.
	own := []string{
		"outbox_read_rows_total", "outbox_settled_messages_total", "outbox_deaths_total", "outbox_forwarder_paused",
	}
	for name, f := range known {
		if name == f.GetName() && !shown[name] && !slices.Contains(own, name) {
			t.Errorf("neither a panel nor an alert uses %s", name)
		}
	}
}

func checkCondition(t *testing.T, file, where string, f *dto.MetricFamily, label, value string) {
	t.Helper()
	if slices.Contains([]string{"le", "instance"}, label) {
		return
	}
	if !slices.ContainsFunc(f.GetMetric()[0].GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == label }) {
		t.Errorf("%s: %s: the metric lacks the label %s", file, where, label)
		return
	}
	for _, v := range strings.Split(value, "|") {
		if values := labelValues(f, label); values != nil && !slices.Contains(values, v) {
			t.Errorf("%s: %s: label %s is %q, want one of %v", file, where, label, v, values)
		}
	}
}

// TestDashboardIsValid checks for mistakes that make Grafana refuse the dashboard or show an empty page.
func TestDashboardIsValid(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(dashboards, "grafana.json"))
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		UID, Title string
		Panels     []struct {
			ID          int
			Type, Title string
			GridPos     struct{ X, Y, W, H int }
			Targets     []struct{ Expr string }
			Options     struct{ Legend map[string]any }
		}
	}
	if err := json.Unmarshal(content, &board); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for i, p := range board.Panels {
		if ids[p.ID] || p.ID == 0 {
			t.Errorf("panel %q has id %d: it must be unique and not 0", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Title == "" || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %d has no title or no query", p.ID)
		}
		if l := p.Options.Legend; l != nil && (l["showLegend"] != true || l["calcs"] == nil) {
			t.Errorf("panel %q has a legend without showLegend or calcs, which Grafana's schema requires", p.Title)
		}
		for _, q := range board.Panels[:i] {
			a, b := p.GridPos, q.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q overlap", p.Title, q.Title)
			}
		}
	}
	if board.UID == "" || board.Title == "" || len(ids) < 20 {
		t.Errorf("%d panels", len(ids))
	}
}

// TestAlerts lets promtool check the alerts and trigger each of them, which takes seconds. Without promtool it is
// skipped, except in CI, where it fails.
func TestAlerts(t *testing.T) {
	read := func(file, name string) []string {
		content, err := os.ReadFile(filepath.Join(dashboards, file))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, m := range regexp.MustCompile(name).FindAllStringSubmatch(string(content), -1) {
			names = append(names, m[1])
		}
		return names
	}
	alerts := read("alerts.yaml", `- alert: (\w+)`)
	fire, calm := read("alerts_test.yaml", `- name: (\w+)\n`), read("alerts_test.yaml", `- name: no (\w+)\n`)
	if len(alerts) < 10 || !slices.Equal(fire, alerts) || !slices.Equal(calm, alerts) {
		t.Errorf("each alert needs a case that fires and a case that does not, in the order of alerts.yaml:\n%v\n%v\n%v",
			alerts, fire, calm)
	}
	if expected := read("alerts_test.yaml",
		`- alertname: (\w+)\n        eval_time: \w+\n        exp_alerts:`); !slices.Equal(expected, alerts) {
		t.Errorf("alerts expected to fire: %v", expected)
	}
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("promtool not found: .ci/run installs it with Debian's package prometheus")
		}
		t.Skip("promtool not found: the alerts were not tested")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = dashboards
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
