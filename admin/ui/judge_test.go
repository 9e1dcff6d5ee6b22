package ui

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
)

func TestIssues(t *testing.T) {
	found := func(s admin.Severity, check, title, subject string) admin.Finding {
		return admin.Finding{Check: check, Severity: s, Title: title, Subject: subject, Evidence: "so\n", Cure: "do"}
	}
	info := found(admin.Info, "size", "a table is large", "")
	paused := found(admin.Warning, "topic_paused", "a topic is paused", "p")
	unread := found(admin.Critical, "topic_unread", "no forwarder publishes a topic", "t")
	for name, c := range map[string]struct {
		findings       []admin.Finding
		level, heading string
		says           []string
	}{
		"healthy":       {nil, "ok", "Healthy", nil},
		"nothing to do": {[]admin.Finding{info}, "ok", "Healthy", []string{"idle A table is large"}},
		"one": {
			[]admin.Finding{paused, info}, "warn", "A topic is paused", []string{"warn A topic is paused: p", "idle A table"},
		},
		"many": {
			append(slices.Repeat([]admin.Finding{unread}, 9), paused),
			"bad", "No forwarder publishes a topic, and 1 more",
			[]string{
				"bad No forwarder publishes a topic: t", "bad No forwarder publishes a topic (8 more)",
				"warn A topic is paused: p",
			},
		},
	} {
		level, heading := heading(c.findings)
		if level != c.level || heading != c.heading {
			t.Errorf("%s: %s, %q", name, level, heading)
		}
		list := issues(c.findings)
		if len(list) != len(c.says) {
			t.Errorf("%s: %+v", name, list)
			continue
		}
		for i, is := range list {
			if got := is.Level + " " + is.Text; !strings.HasPrefix(got, c.says[i]) || strings.Contains(is.Detail, "\n") {
				t.Errorf("%s: %q (%q) instead of %q", name, got, is.Detail, c.says[i])
			}
		}
	}
	if is := issues([]admin.Finding{paused})[0]; !is.Act || is.Link != "act?topic=p&verb=resume" {
		t.Errorf("%+v", is)
	}
	long := strings.Repeat("x", 300)
	if got := short(long + "; this statement: " + long); got != long {
		t.Errorf("%q", got)
	}
}

func TestDraw(t *testing.T) {
	begin, every := time.Now(), 10*time.Second
	at := func(s int, v float64) sample { return sample{at: begin.Add(time.Duration(s) * time.Second), rate: v} }
	of := func(list ...sample) chart {
		return draw(list, every, func(s sample) float64 { return s.rate }, rate)
	}
	if c := of(at(0, 1)); !c.Few {
		t.Errorf("a line of one point: %+v", c)
	}
	c := of(at(0, 0), at(10, 20), at(20, 10))
	if c.Line != "M0.0 60.0L150.0 6.0L300.0 33.0" || c.Area != "M0.0 60L0.0 60.0L150.0 6.0L300.0 33.0L300.0 60Z" ||
		c.Most != "20" || c.Since != "20s" {
		t.Errorf("%+v", c)
	}
	if c := of(at(0, 1), at(10, 1), at(100, 1), at(110, 1)); strings.Count(c.Line, "M") != 2 ||
		strings.Count(c.Area, "Z") != 2 {
		t.Errorf("no gap where samples are missing: %+v", c)
	}
	for _, v := range []float64{0, 1e15} {
		if c := of(at(0, v), at(0, v)); strings.Contains(c.Line+c.Area, "NaN") || strings.Contains(c.Line, "Inf") {
			t.Errorf("%+v", c)
		}
	}
}

// TestChartShowsItsFigures: each part of a chart shows its figures and time, in parts large enough for a pointer and
// few enough for the page.
func TestChartShowsItsFigures(t *testing.T) {
	begin := time.Date(2025, 3, 1, 12, 0, 0, 0, time.UTC)
	var samples []sample
	for i := range maxSamples {
		samples = append(samples, sample{at: begin.Add(time.Duration(i) * 10 * time.Second), rate: float64(i)})
	}
	value := func(s sample) float64 { return s.rate }
	for _, n := range []int{2, 7, 61, maxSamples} {
		c, end := draw(samples[:n], 10*time.Second, value, rate), 0.0
		for _, s := range c.Slices {
			x, _ := strconv.ParseFloat(s.X, 64)
			width, _ := strconv.ParseFloat(s.Width, 64)
			if x < end-.2 || x > end+.2 || width <= 0 {
				t.Errorf("of %d: a slice from %s, %s wide, follows one that ends at %.1f", n, s.X, s.Width, end)
			}
			end = x + width
		}
		last := samples[n-1].at.Format("15:04:05 UTC: ") + rate(float64(n-1))
		if len(c.Slices) > mostSlices || end < chartWidth-1 || c.Slices[len(c.Slices)-1].Text != last {
			t.Errorf("of %d: %d slices up to %.1f: %+v", n, len(c.Slices), end, c.Slices)
		}
	}
}

// TestSamples: figures that are read more often than charts show them do not displace older ones.
func TestSamples(t *testing.T) {
	w := newWatcher(nil, nil, Config{SampleInterval: 10 * time.Second})
	begin := time.Now()
	for i := range 10 * maxSamples {
		w.record(&admin.Stats{Topics: []admin.TopicStats{{Rate: float64(i)}}}, begin.Add(time.Duration(i)*time.Second), 0)
	}
	list := w.history()
	if span := list[len(list)-1].at.Sub(list[0].at); len(list) != maxSamples || span < 50*time.Minute ||
		list[len(list)-1].rate != 10*maxSamples-1 {
		t.Errorf("%d samples of %s", len(list), span)
	}
	if w.recent() == nil {
		t.Error("the last figures are forgotten")
	}
	if w.forget(); w.recent() != nil {
		t.Error("the last figures are not forgotten")
	}
}

// TestActOutdatesEarlierFigures: figures and findings that were being read during an act are not shown to the
// next viewer.
func TestActOutdatesEarlierFigures(t *testing.T) {
	w := newWatcher(nil, nil, Config{SampleInterval: 10 * time.Second})
	w.forget()
	w.record(&admin.Stats{}, time.Now(), 0)
	w.found([]admin.Finding{{}}, time.Now(), 0)
	if w.recent() != nil || w.findings != nil || len(w.history()) != 1 {
		t.Error("findings from before an act are shown after it")
	}
	w.record(&admin.Stats{}, time.Now(), 1)
	w.found([]admin.Finding{{}}, time.Now(), 1)
	if w.recent() == nil || w.findings == nil {
		t.Error("findings from after an act are discarded")
	}
}
