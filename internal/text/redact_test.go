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
		`PASSWORD = "s3cr3t \" x", n`:               `PASSWORD = ***, n`,
		"open db: pass=s3cr3t host=h":               "open db: pass=*** host=h",
		"private_key=s3cr3t&n=1":                    "private_key=***&n=1",
		"session=s3cr3t; path=/":                    "session=***; path=/",
		"sessionid=s3cr3t JSESSIONID=s3cr3t":        "sessionid=*** JSESSIONID=***",
		"exec: psql --password s3cr3t -h h":         "exec: psql --password *** -h h",
		"exec: app --api-key 's3cr3t x' -v":         "exec: app --api-key *** -v",
		"clone https://s3cr3ts3cr3ts3cr3t@host/x":   "clone https://***@host/x",
		"key -----BEGIN RSA PRIVATE KEY-----\ns3cr3t\ns3cr3t\n-----END RSA PRIVATE KEY----- end": "key " +
			"-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY----- end",
		"-----BEGIN PRIVATE KEY-----\ns3cr3t":             "-----BEGIN PRIVATE KEY-----***",
		"Authorization: Basic czNjcjN0":                   "Authorization: Basic ***",
		"Basic dXNlcjpwYXNz and Basic YWJjOmRlZg==":       "Basic *** and Basic ***",
		"Authorization: Basic abcdefgh":                   "Authorization: Basic ***",
		`{"dbPassword":"s3cr3t","private_key": "s3cr3t"}`: `{"dbPassword":"***","private_key": "***"}`,
		`{\"token\":\"s3cr3t\",\"n\":1}`:                  `{\"token\":\"***\",\"n\":1}`,
		"X-Auth-Token: s3cr3t, Set-Cookie: id=s3cr3t":     "X-Auth-Token: ***, Set-Cookie: ***",
		"token:s3cr3t DB_PWD=s3cr3t":                      "token:*** DB_PWD=***",
		"AccountKey=s3cr3t;EndpointSuffix=x":              "AccountKey=***;EndpointSuffix=x",
		"AWS_SESSION_TOKEN=s3cr3t credentials=s3cr3t":     "AWS_SESSION_TOKEN=*** credentials=***",
		"glpat-s3cr3ts3cr3ts3cr3t":                        "***",
		"pwd=s3cr3t":                                      "pwd=***",
		"client-secret: s3cr3t":                           "client-secret: ***",
		"credential=s3cr3t":                               "credential=***",
		"sid=s3cr3t":                                      "sid=***",
		"jwt: s3cr3t":                                     "jwt: ***",
		"?sig=s3cr3t":                                     "?sig=***",
		"set-cookie: s3cr3t":                              "set-cookie: ***",
		"compass=north; bypass = on":                      "compass=north; bypass = on",
		"basic authentication failed; basic Auth":         "basic authentication failed; basic Auth",
		"mail ann@example.com at https://ann@h/x":         "mail ann@example.com at https://ann@h/x",
		"--password-file missing --token --v":             "--password-file missing --token --v",
		"secret: not found; token: expired":               "secret: not found; token: expired",
		"basic reasons; token expired":                    "basic reasons; token expired",
		"password authentication failed for u":            "password authentication failed for u",
		"order 7 of http://shop:8080/x not found":         "order 7 of http://shop:8080/x not found",
	} {
		if got := Redact(s); got != want {
			t.Errorf("%q is redacted to %q, want %q", s, got, want)
		}
		if got := OfError(errors.New(s)); strings.Contains(got, "s3cr3t") {
			t.Errorf("%q is stored as %q", s, got)
		}
	}
}

func BenchmarkRedactNothing(b *testing.B) {
	for b.Loop() {
		Redact(`broker 12 says: topic "orders" is away for the 3rd time, nothing to redact here`)
	}
}
