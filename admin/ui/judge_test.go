package ui

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
)

func TestJudge(t *testing.T) {
	now, n := time.Now(), func(n int64) admin.Count { return admin.Count{N: n} }
	alive := admin.ForwarderStats{Name: "a", Alive: true, Lanes: 64}
	for name, c := range map[string]struct {
		stats admin.Stats
		level string
		says  []string // the issues, in order
	}{
		"nothing yet": {admin.Stats{}, "ok", nil},
		"all is well": {
			admin.Stats{
				Forwarders: []admin.ForwarderStats{alive}, Topics: []admin.TopicStats{
					{Topic: "t", Rate: 5, Ready: n(3), Oldest: time.Second},
				},
			}, "ok", nil,
		},
		"no forwarder": {
			admin.Stats{Topics: []admin.TopicStats{{Topic: "t", Ready: n(3), Failing: n(1)}}}, "bad",
			[]string{"No forwarder is running Pending messages: 4"},
		},
		"none, and nothing waits": {
			admin.Stats{Topics: []admin.TopicStats{{Topic: "t", Rate: 1}}}, "warn",
			[]string{"No forwarder is running New messages"},
		},
		"one has vanished": {
			admin.Stats{Forwarders: []admin.ForwarderStats{alive, {Name: "b\n"}}}, "warn",
			[]string{`Forwarders vanished: b\u000a`},
		},
		"one waits": {
			admin.Stats{
				At: now, Forwarders: []admin.ForwarderStats{{Name: "a", Alive: true, WaitingSince: now.Add(-time.Minute)}},
			}, "warn", []string{"waits for other forwarders to stop Its topics overlap with theirs. It has waited for 1 min"},
		},
		"paused, and a broker is away": {
			admin.Stats{At: now, Forwarders: []admin.ForwarderStats{alive}, Topics: []admin.TopicStats{
				{
					Topic: "p", Paused: true, Oldest: time.Hour, PausedBy: []admin.Pause{
						{By: "operator", Since: now.Add(-time.Minute), Reason: "bob: why"},
					},
				},
				{
					Topic: "q", Paused: true, Oldest: time.Hour, PausedBy: []admin.Pause{
						{By: "a", Since: now.Add(-time.Second), Reason: "refused"}, {By: "b", Since: now},
					},
				},
			}}, "bad", []string{
				"The broker of q is unavailable a has retried for 1 s, and resumes by itself: refused",
				"p is paused By bob: why, for 1 min.",
			},
		},
		"dead, and old": {
			admin.Stats{
				Forwarders: []admin.ForwarderStats{alive}, Topics: []admin.TopicStats{
					{Topic: "t", Dead: n(1), Failing: n(2), Oldest: time.Hour},
				},
			}, "warn",
			[]string{
				"1 message is dead", "The oldest message of t has waited for 1 h Failing, and waiting for another attempt: 2.",
			},
		},
		"dead in the inbox and the queue": {
			admin.Stats{
				Inbox: []admin.ConsumerStats{{Dead: n(1)}, {Dead: admin.Count{N: 9, More: true}}},
				Queue: []admin.TopicStats{{Dead: n(2)}},
			}, "warn",
			[]string{"10+ messages are dead in the inbox", "2 messages are dead in the queue"},
		},
		"failing in the inbox": {
			admin.Stats{
				Inbox: []admin.ConsumerStats{
					{Consumer: "shop/a", Failing: n(1), Oldest: 2 * time.Minute},
					{Consumer: "shop/b", Failing: n(2), Oldest: 5 * time.Minute},
					{Consumer: "shop/c", Failing: n(7), Oldest: time.Second},
				},
			}, "warn", []string{"3 messages are failing in the inbox The oldest, of shop/b, for 5 min."},
		},
		"old in the queue": {
			admin.Stats{
				Queue: []admin.TopicStats{
					{Topic: "idle", Ready: n(1), Oldest: time.Second}, {Topic: "slow", Ready: n(1), Oldest: time.Hour},
					{Topic: "bad", Failing: n(3), Oldest: time.Hour},
				},
			}, "warn",
			[]string{
				"The oldest message of slow has waited for 1 h in the queue Check that",
				"The oldest message of bad has waited for 1 h in the queue Failing, and waiting for another attempt: 3.",
			},
		},
		"many are slow": {
			admin.Stats{
				Forwarders: []admin.ForwarderStats{alive},
				Topics:     slices.Repeat([]admin.TopicStats{{Topic: "t", Ready: n(1), Oldest: time.Hour}}, 30),
			}, "warn",
			[]string{
				"The oldest message of t", "The oldest message of t", "The oldest message of t",
				"27 more topics have the same problem",
			},
		},
		"many have no broker": {
			admin.Stats{
				At: now, Forwarders: []admin.ForwarderStats{alive},
				Topics: slices.Repeat([]admin.TopicStats{{Topic: "t", Paused: true, PausedBy: []admin.Pause{{By: "a"}}}}, 9),
			}, "bad",
			[]string{"The broker of t", "The broker of t", "The broker of t", "6 more topics have the same problem"},
		},
	} {
		issues := judge(&c.stats)
		level, text := heading(issues)
		if nobody := strings.HasPrefix(name, "no forwarder"); level == "bad" &&
			nobody != (text == "No messages are published") {
			t.Errorf("%s: %s", name, text)
		}
		if level != c.level || len(issues) != len(c.says) {
			t.Errorf("%s: %s, %+v", name, level, issues)
			continue
		}
		for i, is := range issues {
			if !strings.HasPrefix(is.Text+" "+is.Detail, c.says[i]) && !strings.Contains(is.Text+" "+is.Detail, c.says[i]) {
				t.Errorf("%s: %q instead of %q", name, is.Text+" "+is.Detail, c.says[i])
			}
		}
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
		c.Most != "20" || c.Since != "20 s" {
		t.Errorf("%+v", c)
	}
	if c := of(at(0, 1), at(10, 1), at(100, 1), at(110, 1)); strings.Count(c.Line, "M") != 2 ||
		strings.Count(c.Area, "Z") != 2 {
		t.Errorf("no gap where nobody has looked: %+v", c)
	}
	for _, v := range []float64{0, 1e15} {
		if c := of(at(0, v), at(0, v)); strings.Contains(c.Line+c.Area, "NaN") || strings.Contains(c.Line, "Inf") {
			t.Errorf("%+v", c)
		}
	}
}

// TestSamples sees that figures that are read more often than charts show do not push older ones out.
func TestSamples(t *testing.T) {
	w := newWatcher(nil, 10*time.Second)
	begin := time.Now()
	for i := range 10 * maxSamples {
		w.note(&admin.Stats{Topics: []admin.TopicStats{{Rate: float64(i)}}}, begin.Add(time.Duration(i)*time.Second))
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
