package text

import (
	"errors"
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	for s, want := range map[string]string{
		"dial postgres://ann:s3cr3t@db/x: refused": "dial postgres://ann:***@db/x: refused",
		"amqp://:s3cr3t@mq":                        "amqp://:***@mq",
		"host=h password=s3cr3t user=u":            "host=h password=*** user=u",
		`PASSWORD = 's3cr3t \' x' user=u`:          "PASSWORD = *** user=u",
		`Post "https://h/p?token=s3cr3t&n=1": EOF`: `Post "https://h/p?token=***&n=1": EOF`,
		`body {"api_key": "s3cr3t", "n": 1}`:       `body {"api_key": "***", "n": 1}`,
		"Authorization: Bearer s3cr3t.s3cr3t==":    "Authorization: Bearer ***",
		"basic reasons; token expired":             "basic reasons; token expired",
		"password authentication failed for u":     "password authentication failed for u",
		"order 7 of http://shop:8080/x not found":  "order 7 of http://shop:8080/x not found",
	} {
		if got := Redact(s); got != want {
			t.Errorf("%q became %q, want %q", s, got, want)
		}
		if got := OfError(errors.New(s)); strings.Contains(got, "s3cr3t") {
			t.Errorf("%q is stored as %q", s, got)
		}
	}
}
