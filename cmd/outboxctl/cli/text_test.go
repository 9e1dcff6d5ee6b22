package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"charm.land/lipgloss/v2"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/internal/words"
)

func TestClean(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"":                           "",
		"plain ü 日本 👍":               "plain ü 日本 👍",
		"\x1b[31m":                   `\x1b[31m`,
		"a\tb\nc\rd\x00\x7f":         `a\tb\nc\rd\x00\x7f`,
		"\u009b2J\u0085":             `\u009b2J\u0085`,
		"\u202egnp.exe\u2028\ufeff":  `\u202egnp.exe\u2028\ufeff`,
		"\xff\xc3":                   `\xff\xc3`,
		"\ufffd, which is printable": "\ufffd, which is printable",
		"\U000e0041":                 `\U000e0041`,
		`a \ b`:                      `a \ b`,
	} {
		if got := clean(s); got != want {
			t.Errorf("clean(%q) = %q, want %q", s, got, want)
		}
	}
}

// TestPrintable: the JSON has the same meaning before and after.
func TestPrintable(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"plain ü", "\x1b[31m\n", "\u009b2J\x7f", "\u202e\u2028", "\U000e0041 👍", `\ "`, "\ufffd"} {
		encoded, err := json.Marshal(map[string]string{s: s})
		if err != nil {
			t.Fatal(err)
		}
		after := printable(encoded)
		if string(after) != clean(string(after)) {
			t.Errorf("%q is not printable", after)
		}
		var back map[string]string
		if err := json.Unmarshal(after, &back); err != nil || back[s] != s {
			t.Errorf("%q became %q: %v", s, after, err)
		}
	}
}

func TestIndented(t *testing.T) {
	t.Parallel()
	if got := indented("failed:\n\tone\r\nPaused topic x.\n"); got != "failed:\n      one\n    Paused topic x." {
		t.Errorf("%q", got)
	}
}

func TestHiding(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	h := &redactor{to: &b}
	h.addDSN("postgres://ann:s3%40cret/x@h1,h2/db?sslpassword=other")
	h.addSecret("")
	for _, said := range []string{
		"s3%40cret/x", "s3@cret/x", "other", "password='a \\' b' host=x", "nats://u:pw@h", "PASSWORD = q",
	} {
		if _, err := h.Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
	}
	for _, secret := range []string{"s3", "cret", "other", `\' b`, "pw", "q"} {
		if strings.Contains(b.String(), secret) {
			t.Errorf("%q is in %q", secret, b.String())
		}
	}
}

// TestHidingKnowsQuotes: a log quotes text that an error has quoted already.
func TestHidingKnowsQuotes(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{`can"ary`, `can\ary`, `"canary\`, "can\tary", "can$&ary", "canary"} {
		var b bytes.Buffer
		h := &redactor{to: &b}
		h.addSecret(secret)
		err := &url.Error{Op: "parse", URL: secret, Err: errors.New("it is bad")} // its text quotes the URL
		inText, inJSON := slog.New(slog.NewTextHandler(h, nil)), slog.New(slog.NewJSONHandler(printing{h}, nil))
		for _, log := range []*slog.Logger{inText, inJSON} {
			log.Info(secret, "plain", errors.New(secret), "quoted", err)
		}
		_, _ = h.Write([]byte((&url.URL{User: url.UserPassword("ann", secret)}).User.String()))
		if said := b.String(); strings.Contains(said, "can") || strings.Contains(said, "ary") ||
			strings.Count(said, text.Redacted) != 7 {
			t.Errorf("%q is in %s", secret, said)
		}
	}
}

func TestHidingKnowsBrokers(t *testing.T) {
	t.Parallel()
	for addresses, secret := range map[string]string{
		"nats://ann:s3cret@h:1": "s3cret", "ann:s3cret@h": "s3cret", "t0ken@h:4222": "t0ken",
		"nats://h1,nats://t0ken@h2": "t0ken", "h1:9092,ann:s3cret@h2:9092": "s3cret", "nats://ann:s3/c@ret@h": "s3/c@ret",
	} {
		h := &redactor{}
		h.addBroker(addresses)
		if said := h.redact("cannot use " + secret + " there"); said != "cannot use *** there" {
			t.Errorf("%s: %s", addresses, said)
		}
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", time.Millisecond: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m01s", 90 * time.Minute: "1h30m",
		47 * time.Hour: "47h00m",
		49 * time.Hour: "2d01h", -time.Minute: "-1m00s", 1<<63 - 1: "106751d23h",
		-1: "0s", -1 << 63: "-106751d23h",
	} {
		if got := words.Age(d); got != want {
			t.Errorf("words.Age(%d) = %q, want %q", d, got, want)
		}
	}
}

func TestDigits(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1000: "-1,000", 1234567: "1,234,567"} {
		if got := words.Number(n); got != want {
			t.Errorf("words.Number(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestWhen(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for s, want := range map[string]time.Time{
		"2026-03-01":                time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC),
		"2026-03-01 10:00:00":       time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC),
		"2026-03-01T10:00:00+02:00": time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC), "90m": now.Add(-90 * time.Minute),
		"7d": now.AddDate(0, 0, -7), "1d12h": now.Add(-36 * time.Hour),
	} {
		if got, err := words.Time(s, now); err != nil || !got.Equal(want) {
			t.Errorf("words.Time(%q) = %v, %v, want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "yesterday", "-5m", "d", "-1d", "5", "1d1d", "99999999d", "2026-13-01"} {
		if got, err := words.Time(s, now); err == nil {
			t.Errorf("words.Time(%q) = %v", s, got)
		}
	}
}

// TestGridFits: tables are no wider than the terminal, whatever they contain.
func TestGridFits(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "short", strings.Repeat("long ", 100), strings.Repeat("日本", 50), strings.Repeat("\x1b[31m", 20),
		"👩‍👩‍👧‍👦" + strings.Repeat("e\u0301", 200),
	} {
		for _, width := range []int{24, 40, 80, 200} {
			var b bytes.Buffer
			a := &app{world: World{Width: func() int { return width }}, out: noColours(&b)}
			g := grid{
				heads: []string{"ID", "TOPIC", "NOTHING", "ERROR"},
				rows:  [][]cell{plain("1", "orders", "", text), plain("2", text, "", "x")},
			}
			if err := g.print(a); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(b.String()) {
				if w := lipgloss.Width(strings.TrimSuffix(line, "\n")); w > width {
					t.Errorf("%d columns on a terminal of %d: %q", w, width, line)
				}
			}
			if strings.Contains(b.String(), "NOTHING") {
				t.Error("an empty column")
			}
		}
	}
}

// TestResumeSaysWhatGoesOn: a topic that forwarders have also paused stays paused when the operator's pause ends.
func TestResumeSaysWhatGoesOn(t *testing.T) {
	operator, forwarder := admin.Pause{By: "operator"}, admin.Pause{By: "vm:7", Reason: "no connection"}
	for _, tt := range []struct {
		pauses []admin.Pause
		ours   bool
		said   string
	}{
		{nil, false, ""},
		{[]admin.Pause{operator}, true, ""},
		{
			[]admin.Pause{forwarder}, false,
			"topic bookings is still paused by forwarder vm:7, which resumes it on its own: no connection\n",
		},
		{
			[]admin.Pause{forwarder, operator}, true,
			"topic bookings is still paused by forwarder vm:7, which resumes it on its own: no connection\n",
		},
	} {
		var said strings.Builder
		a := &app{err: &said}
		if ours := a.resumed("bookings", tt.pauses); ours != tt.ours || said.String() != tt.said {
			t.Errorf("%v: %t, %q, want %t, %q", tt.pauses, ours, said.String(), tt.ours, tt.said)
		}
	}
}

func TestDaysAreRefusedWithTheCure(t *testing.T) {
	for _, s := range []string{"7", "a week", "7d3", "d"} {
		if err := (&days{}).Set(s); err == nil || !strings.Contains(err.Error(), "7d") {
			t.Errorf("%q: %v, want what to write instead", s, err)
		}
	}
	for _, s := range []string{"0s", "-1h"} {
		if err := (&days{}).Set(s); err == nil || !strings.Contains(err.Error(), "more than 0") {
			t.Errorf("%q: %v", s, err)
		}
	}
}
