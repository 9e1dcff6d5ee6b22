package admin

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestNormal(t *testing.T) {
	for in, want := range map[string]string{
		"":                         "",
		"timeout after 1.5s":       "timeout after <n>s",
		"dial 10.0.0.1:4222: EOF":  "dial <n>: EOF",
		"no such order 42":         "no such order <n>",
		"no such order-1234 ":      "no such order-<n>",
		"unknown topic \"a b\"":    "unknown topic \"…\"",
		"key 'o-1' can't be found": "key '…' can't be found",
		"it's broken, isn't it":    "it's broken, isn't it",
		"an open \"quote 7":        "an open \"quote <n>",
		"`x` failed\n\tat 0xc000a1 in 6f9619ff-8b86-d011-b42d-00c04fc964ff": "`…` failed at <n> in <id>",
		"commit deadbeef01 is bad":                "commit <n> is bad",
		"commit 1234567890 is bad":                "commit <n> is bad",
		"facade effaced decade":                   "facade effaced decade",
		`escaped "a \" b" end`:                    `escaped "…" end`,
		"größer als 7 €":                          "größer als <n> €",
		"6f9619ff-8b86-d011-b42d-00c04fc964ff":    "<id>",
		"utf8 and 3rd":                            "utf<n> and <n>rd",
		"0xff":                                    "<n>",
		"a/6f9619ff-8b86-d011-b42d-00c04fc964ff/": "a/<id>/",
	} {
		if got := normal(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	if a, b := groupID("order 1 of \"x\""), groupID("order 22 of \"y z\""); a != b || len(a) != 16 {
		t.Errorf("%q and %q", a, b)
	}
	// People write this down: it must never change.
	if got := groupID("timeout after 5s"); got != "2ce3bd5fc90f2e2f" {
		t.Errorf("the id of a group is %q now", got)
	}
}

func FuzzNormal(f *testing.F) {
	f.Add("order 'x' 0x1 6f9619ff-8b86-d011-b42d-00c04fc964ff")
	f.Fuzz(func(t *testing.T, s string) {
		n := normal(s)
		if utf8.ValidString(s) && !utf8.ValidString(n) || len(n) > maxNormal+64 {
			t.Errorf("%q becomes %q", s, n)
		}
		if strings.ContainsAny(n, "\n\r\t\x00\x1b") {
			t.Errorf("%q keeps control characters: %q", s, n)
		}
	})
}
