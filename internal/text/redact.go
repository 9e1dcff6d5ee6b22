package text

import (
	"regexp"
	"strings"
)

// Redacted stands for a secret.
const Redacted = "***"

// secretShape is a form in which errors quote secrets.
type secretShape struct {
	hints []string // one of which is in the text, which is quicker to see
	shape *regexp.Regexp
	with  string
}

var secretShapes = []secretShape{
	{ // up to the last @ before the host ends, as drivers read it, or up to the first behind a slash that is not encoded
		[]string{"@"}, regexp.MustCompile(`(://[^:/@\s]*:)(?:[^\s/?#]+|[^@\s]+)@`), "${1}" + Redacted + "@",
	},
	{
		[]string{"="}, regexp.MustCompile(`(?i)((?:ssl)?password\s*=\s*)('(?:\\.|[^'\\])*'?|[^\s&'"]+)`),
		"${1}" + Redacted,
	},
	{
		[]string{"="}, regexp.MustCompile(`(?i)((?:\b|[_-])(?:passwd|pwd|passphrase|secret|token|api_?key|` +
			`access_?key|client_?secret|access_?token|sig|signature)=)[^\s&'"]+`), "${1}" + Redacted,
	},
	{
		[]string{`":`, `" :`}, regexp.MustCompile(`(?i)("(?:password|passwd|secret|token|api_?key|client_?secret|` +
			`access_?token)"\s*:\s*")(?:\\.|[^"\\])*`), "${1}" + Redacted,
	},
	{
		[]string{"earer ", "asic ", "EARER ", "ASIC "}, regexp.MustCompile(`(?i)(\b(?:bearer|basic) )[a-z0-9._~+/-]*` +
			`[0-9][a-z0-9._~+/-]*=*`), "${1}" + Redacted,
	},
	{ // a header, or a field; a secret has a digit, and words have none
		[]string{": "}, regexp.MustCompile(`(?i)(\b(?:[a-z-]*(?:api-?key|token|secret|passphrase|password)|cookie): )` +
			`[^\s,;]*[0-9][^\s,]*`), "${1}" + Redacted,
	},
	{ // NATS takes what stands alone before the @ for a token
		[]string{"@"}, regexp.MustCompile(`(\b(?:nats|tls)://)[^:/@\s]+@`), "${1}" + Redacted + "@",
	},
	{ // tokens that say what they are: JSON Web Tokens, and those of GitHub, Slack, Stripe and AWS
		[]string{"eyJ", "gh", "xox", "_live_", "_test_", "AKIA"}, regexp.MustCompile(`\b(?:eyJ[\w-]+\.[\w-]+\.[\w-]*|` +
			`(?:gh[pousr]|github_pat)_\w{16,}|xox[a-z]-[\w-]+|[sr]k_(?:live|test)_\w+|AKIA[A-Z0-9]{12,})`), Redacted,
	},
}

// Redact replaces what looks like a secret in a text: passwords of URLs and connection strings, tokens of queries, JSON
// and headers. It knows shapes alone, so a secret of another shape stays.
func Redact(s string) string {
	for _, known := range secretShapes {
		for _, hint := range known.hints {
			if strings.Contains(s, hint) {
				s = known.shape.ReplaceAllString(s, known.with)
				break
			}
		}
	}
	return s
}
