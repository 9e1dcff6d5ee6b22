package cli

import (
	"github.com/millrace-go/watermill-outbox/internal/words"
	"io"
	"strings"
	"testing"
	"time"
)

// FuzzWhen: a typed time is in the past or was typed in full; others are refused with an explanation.
func FuzzWhen(f *testing.F) {
	for _, s := range []string{
		"", "90m", "7d", "7d12h", "-1h", "1d-48h", "65535d2562047h", "2006-01-02", "2006-01-02T15:04:05.5+23:59", "d", "1.5d",
	} {
		f.Add(s)
	}
	now := time.Unix(1_700_000_000, 0)
	f.Fuzz(func(t *testing.T, s string) {
		at, err := words.Time(s, now)
		switch {
		case err != nil && !at.IsZero(), err != nil && !strings.Contains(err.Error(), "is not a time"):
			t.Errorf("%q is %s, %v", s, at, err)
		case err == nil && at.After(now) && !strings.Contains(s, "-"):
			t.Errorf("%q, an age, is %s", s, at)
		}
	})
}

// FuzzAge: every duration has an age of a few letters.
func FuzzAge(f *testing.F) {
	for _, d := range []int64{0, 1, -1, 1<<63 - 1, -1 << 63} {
		f.Add(d)
	}
	f.Fuzz(func(t *testing.T, d int64) {
		if s := words.Age(time.Duration(d)); s == "" || len(s) > len("-106751d23h") ||
			(d <= -1e9) != strings.HasPrefix(s, "-") {
			t.Errorf("the age of %d is %q", d, s)
		}
	})
}

// FuzzFilterFlags: with any typed filter the command reports an error or requires a database. It prints no control
// character of the filter.
func FuzzFilterFlags(f *testing.F) {
	tables := []string{"outbox", "inbox", "queue"}
	flags := []string{
		"--state", "--topic", "--key", "--consumer", "--source", "--group", "--error", "--after", "--before", "--page",
		"--limit", "--tables", "--output",
	}
	f.Add(uint8(0), uint8(0), "dead,ready", uint8(7), "7d")
	f.Add(uint8(2), uint8(9), "e30", uint8(1), "\x1b[2J")
	f.Add(uint8(1), uint8(3), "\xff", uint8(8), "\u202e")
	f.Add(uint8(0), uint8(10), "-1", uint8(0), "no\x07such")
	f.Add(uint8(0), uint8(11), "schema=a", uint8(11), "outbox=\"")
	f.Fuzz(func(t *testing.T, table, flag uint8, value string, second uint8, value2 string) {
		var said strings.Builder
		code := Run(t.Context(), []string{
			tables[int(table)%len(tables)], "list", flags[int(flag)%len(flags)] + "=" + value,
			flags[int(second)%len(flags)] + "=" + value2,
		}, World{In: strings.NewReader(""), Out: io.Discard, Err: &said})
		if code != exitUsage || said.Len() == 0 {
			t.Errorf("exit code %d: %s", code, said.String())
		}
		for _, r := range said.String() {
			if r != '\n' && r != '\t' && (r < ' ' || r == 0x7f || r == 0x202e) {
				t.Errorf("%q is printed: %q", r, said.String())
			}
		}
	})
}

// FuzzHiding: the password of a connection string is not printed, wherever it is and however it is quoted.
func FuzzHiding(f *testing.F) {
	for _, s := range []string{"x", "can@ry", "can/ary#x", "c%61n", "a'b", `a\b`, "[a", "é\n", "a:b", "\u202e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.ContainsAny(s, " \t\r\n\v\f'\"`,") || strings.Contains(s, "ssword") {
			return // without %XX these do not fit into an address
		}
		secret := "canary1" + s + "canary2"
		for _, dsn := range []string{"postgres://ann:" + secret + "@db:5432/x", "host=db password=" + secret + " user=ann"} {
			if strings.HasPrefix(dsn, "host") && strings.Contains(s, "&") {
				continue
			}
			h := &redactor{}
			h.addDSN(dsn)
			for _, said := range []string{dsn, "password " + secret + " is wrong", inJSON(secret)} {
				if got := h.redact(said); strings.Contains(got, "canary1") || strings.Contains(got, "canary2") {
					t.Errorf("%q of %q is printed as %q", said, dsn, got)
				}
			}
		}
	})
}
