package ui

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
)

func TestWords(t *testing.T) {
	now := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	for got, want := range map[string]string{
		visible("orders.placed é 漢"):              "orders.placed é 漢",
		visible("a\x1b[2J\r\n\tb\x00"):            `a\x1b[2J\r\n\tb\x00`,
		visible("\u202egnp.exe\u200b"):            `\u202egnp.exe\u200b`,
		visible("\xff\U000e0041"):                 `\xff\U000e0041`,
		visible("\ufffd\u00a0"):                   "\ufffd" + `\u00a0`,
		reveal("a\n\tb\r", true):                  "a\n\tb" + `\r`,
		number(0):                                 "0",
		number(999):                               "999",
		number(1000):                              "1,000",
		number(-1234567):                          "-1,234,567",
		count(admin.Count{N: 10_000, More: true}): "10,000+",
		rate(0):                                      "0",
		rate(0.04):                                   "<0.1",
		rate(9.94):                                   "9.9",
		rate(9.96):                                   "10",
		rate(12345.6):                                "12,346",
		span(0):                                      "0s",
		span(59 * time.Second):                       "59s",
		span(61 * time.Second):                       "1m01s",
		span(10*time.Minute + time.Second):           "10m01s",
		span(26*time.Hour + 59*time.Minute):          "26h59m",
		ago(now, now.Add(-5*time.Minute)):            "5m00s ago",
		ago(now, now.Add(5*time.Minute)):             "in 5m00s",
		ago(now, now.Add(-time.Millisecond)):         "now",
		previewOf(nil).Kind:                          "null",
		previewOf([]byte{}).Kind:                     "empty",
		previewOf([]byte(`{"a":[1]}`)).Text:          "{\n  \"a\": [\n    1\n  ]\n}",
		previewOf([]byte("{\"a\":\"\u202e\"}")).Text: "{\n  \"a\": \"" + `\u202e` + "\"\n}",
		previewOf([]byte("héllo\n\u200b")).Text:      "héllo\n" + `\u200b`,
		previewOf([]byte("a\x00b")).Kind:             "binary",
		previewOf([]byte(strings.Repeat("é", maxText))).Kind: "text",
		link("messages", admin.Filter{}):                     "./messages",
		link("messages", admin.Filter{Topic: "a&b=c #"}):     "messages?topic=a%26b%3Dc+%23",
		back("//evil.example", admin.Filter{}):               "./",
	} {
		if got != want {
			t.Errorf("%q instead of %q", got, want)
		}
	}
	long := previewOf([]byte(strings.Repeat("é", maxText)))
	if len(long.Text) > maxText || long.Cut != 2*maxText || strings.ContainsRune(long.Text, '\ufffd') {
		t.Errorf("%d bytes, cut from %d", len(long.Text), long.Cut)
	}
	if hex := previewOf([]byte(strings.Repeat("\x00", 1<<20))); hex.Cut != 1<<20 || len(hex.Text) > 10*maxHex {
		t.Errorf("%d bytes of hex, cut from %d", len(hex.Text), hex.Cut)
	}
}

// TestFilterThereAndBack converts filters to addresses and back.
func TestFilterThereAndBack(t *testing.T) {
	for _, f := range []admin.Filter{
		{}, {In: admin.Queue, Topic: "t\r\n", Key: "k&", Consumer: "c=%00", States: []admin.State{admin.Dead, admin.Failing}},
		{
			IDs: []string{"1", "2"}, ErrorGroup: "g", ErrorContains: "e", All: true, After: time.Unix(1e9, 0).UTC(),
			Before: time.Unix(1.2e9, 0).UTC(),
		},
	} {
		got, err := parseFilter(values(f))
		if err != nil || values(got).Encode() != values(f).Encode() || !got.After.Equal(f.After) {
			t.Errorf("%+v instead of %+v, %v", got, f, err)
		}
	}
}

// TestEffectOfRequeue: messages of the inbox are not retried on their own, and the confirmation must not say so.
func TestEffectOfRequeue(t *testing.T) {
	requeue := verbOf("requeue")
	for in, says := range map[admin.Table]string{
		admin.Outbox: "retried", admin.Queue: "retried", admin.Inbox: "the broker redelivers them",
	} {
		if does := requeue.Does[in]; !strings.Contains(does, says) {
			t.Errorf("%s: %q, want %q", in, does, says)
		}
	}
}
