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
	{[]string{"@"}, regexp.MustCompile(`(://[^:/@\s]*:)[^@\s]+@`), "${1}" + Redacted + "@"},
	{
		[]string{"="}, regexp.MustCompile(`(?i)((?:ssl)?password\s*=\s*)('(?:\\.|[^'\\])*'?|[^\s&'"]+)`),
		"${1}" + Redacted,
	},
	{
		[]string{"="}, regexp.MustCompile(`(?i)(\b(?:passwd|pwd|secret|token|api_?key|access_?key|client_?secret|` +
			`access_?token|sig|signature)=)[^\s&'"]+`), "${1}" + Redacted,
	},
	{
		[]string{`":`, `" :`}, regexp.MustCompile(`(?i)("(?:password|passwd|secret|token|api_?key|client_?secret|` +
			`access_?token)"\s*:\s*")(?:\\.|[^"\\])*`), "${1}" + Redacted,
	},
	{
		[]string{"earer ", "asic ", "EARER ", "ASIC "}, regexp.MustCompile(`(?i)(\b(?:bearer|basic) )[a-z0-9._~+/-]*` +
			`[0-9][a-z0-9._~+/-]*=*`), "${1}" + Redacted,
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
