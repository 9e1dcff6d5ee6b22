package text

import (
	"regexp"
	"strings"
)

// Redacted stands for a secret.
const Redacted = "***"

// secretName matches the end of a name whose value is a secret, as in X-Auth-Token, AWS_SECRET_ACCESS_KEY or
// DB_PASSWORD.
const secretName = `(?:pass(?:word|wd|phrase)?|pwd|secret|token|credentials?|j?session(?:_?id)?|sid|jwt|` +
	`(?:api|access|private|secret|account|shared|encryption|signing)[_-]?(?:access[_-]?)?key|sig|signature)`

// secretWords: every name that matches secretName, or ends with "cookie", contains one of them.
var secretWords = []string{
	"pass", "pwd", "secret", "token", "credential", "session", "sid", "jwt", "key", "sig", "cookie",
}

// secretShapes are the forms in which errors quote secrets. A shape is tried only if the lower-cased text contains one
// of its hints, which is faster to check.
var secretShapes = []struct {
	hints []string
	shape *regexp.Regexp
	with  string
}{
	{ // a key in PEM, even if its end was cut off
		[]string{"private key-----"},
		regexp.MustCompile(`(-----BEGIN [A-Z ]*PRIVATE KEY-----)(?s:.*?)(-----END [A-Z ]*PRIVATE KEY-----|$)`), "${1}" +
			Redacted + "${2}",
	},
	{ // a password in a URL: up to the last @ in the host, as drivers read it, or the first @ after a raw slash
		[]string{"@"}, regexp.MustCompile(`(://[^:/@\s]*:)(?:[^\s/?#]+|[^@\s]+)@`), "${1}" + Redacted + "@",
	},
	{ // a token alone before the @ of a URL; user names there are shorter, except for NATS, which reads one as a token
		[]string{"@"}, regexp.MustCompile(`(://)[^:/@\s?#]{16,}@|(\b(?:nats|tls)://)[^:/@\s]+@`), "${1}${2}" + Redacted + "@",
	},
	{ // a header or a field: a secret has a digit, words do not
		secretWords, regexp.MustCompile(`(?i)(\b(?:[\w-]*` + secretName + `|(?:set-)?cookie): ?)[^\s,;]*[0-9][^\s,]*`),
		"${1}" + Redacted,
	},
	{ // name=value, in queries, connection strings and environments, with quotes or without
		secretWords, regexp.MustCompile(`(?i)((?:\b|[_-])(?:ssl)?` + secretName + `\s*=\s*)` +
			`('(?:\\.|[^'\\])*'?|"(?:\\.|[^"\\])*"?|[^\s&'",;]+)`), "${1}" + Redacted,
	},
	{ // "name": "value", in JSON, and in JSON that is quoted
		[]string{`":`, `" :`, `\":`}, regexp.MustCompile(`(?i)("[\w-]*` + secretName +
			`\\?"\s*:\s*\\?")(?:\\[^"]|\\"[^,}\s]|[^"\\])*`),
		"${1}" + Redacted,
	},
	{ // --name value
		[]string{"--"}, regexp.MustCompile(`(?i)(--[\w-]*` + secretName + `\s+)('[^']*'?|"[^"]*"?|[^\s-]\S*)`), "${1}" +
			Redacted,
	},
	{
		[]string{"bearer "}, regexp.MustCompile(`(?i)(\bbearer )[a-z0-9._~+/-]*[0-9][a-z0-9._~+/-]*=*`), "${1}" + Redacted,
	},
	{ // everything after this header name is a secret, even without a digit
		[]string{"authorization"},
		regexp.MustCompile(`(?i)(authorization"?\s*[:=]\s*"?(?:bearer|basic|digest|token)\s+)[^\s"',;]+`),
		"${1}" + Redacted,
	},
	{ // base64 of name:password, which ends in =, has a digit, or mixes cases as words do not
		[]string{"basic "},
		regexp.MustCompile(`(\b(?i:basic) )` +
			`(?:[A-Za-z0-9+/]*(?:[0-9+]|[a-z][A-Z]+[a-z])[A-Za-z0-9+/]*=*|[A-Za-z0-9+/]{6,}=+)`),
		"${1}" + Redacted,
	},
	{ // recognisable tokens: JSON Web Tokens, and those of GitHub, Slack, Stripe, AWS, Google and GitLab
		[]string{"eyj", "gh", "xox", "_live_", "_test_", "akia", "asia", "aiza", "glpat-"},
		regexp.MustCompile(`\b(?:eyJ[\w-]+\.[\w-]+\.[\w-]*|(?:gh[pousr]|github_pat)_\w{16,}|xox[a-z]-[\w-]+|` +
			`[sr]k_(?:live|test)_\w+|A[KS]IA[A-Z0-9]{12,}|AIza[\w-]{30,}|glpat-[\w-]{16,})`), Redacted,
	},
}

// Redact replaces likely secrets in a text: passwords of URLs and connection strings, tokens of queries, JSON and
// headers. It recognises only these shapes, so other secrets stay.
func Redact(s string) string {
	lower := strings.ToLower(s)
	for _, known := range secretShapes {
		for _, hint := range known.hints {
			if strings.Contains(lower, hint) {
				s = known.shape.ReplaceAllString(s, known.with)
				break
			}
		}
	}
	return s
}
