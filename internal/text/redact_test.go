package text

import (
	"errors"
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	for s, want := range map[string]string{
		"dial postgres://ann:s3cr3t@db/x: refused":  "dial postgres://ann:***@db/x: refused",
		"amqp://:s3cr3t@mq":                         "amqp://:***@mq",
		"dial nats://ann:x@s3cr3t@mq:4222":          "dial nats://ann:***@mq:4222",
		"dial nats://ann:x/s3cr3t@mq, n@mq":         "dial nats://ann:***@mq, n@mq",
		"host=h password=s3cr3t user=u":             "host=h password=*** user=u",
		`PASSWORD = 's3cr3t \' x' user=u`:           "PASSWORD = *** user=u",
		`Post "https://h/p?token=s3cr3t&n=1": EOF`:  `Post "https://h/p?token=***&n=1": EOF`,
		`body {"api_key": "s3cr3t", "n": 1}`:        `body {"api_key": "***", "n": 1}`,
		"Authorization: Bearer s3cr3t.s3cr3t==":     "Authorization: Bearer ***",
		"nats://s3cr3t@n1:4222, n@mq":               "nats://***@n1:4222, n@mq",
		"AWS_SECRET_ACCESS_KEY=s3cr3t sig=s3cr3t":   "AWS_SECRET_ACCESS_KEY=*** sig=***",
		"X-Api-Key: s3cr3t, passphrase: s3cr3t":     "X-Api-Key: ***, passphrase: ***",
		"Cookie: session=s3cr3t":                    "Cookie: ***",
		"jwt eyJhbGciOiJI.eyJzdWIi.s3cr3t, stop":    "jwt ***, stop",
		"ghp_s3cr3ts3cr3ts3cr3t and sk_live_s3cr3t": "*** and ***",
		"secret: not found; token: expired":         "secret: not found; token: expired",
		"basic reasons; token expired":              "basic reasons; token expired",
		"password authentication failed for u":      "password authentication failed for u",
		"order 7 of http://shop:8080/x not found":   "order 7 of http://shop:8080/x not found",
	} {
		if got := Redact(s); got != want {
			t.Errorf("%q became %q, want %q", s, got, want)
		}
		if got := OfError(errors.New(s)); strings.Contains(got, "s3cr3t") {
			t.Errorf("%q is stored as %q", s, got)
		}
	}
}
