package text

import "regexp"

// quoted matches input that errors of decoders quote: quotations, including unfinished ones, and numbers.
var quoted = regexp.MustCompile("'(?:[^'\\\\]|\\\\.)*'?" + `|"(?:[^"\\]|\\.)*"?` + "|`[^`]*`?" +
	`|<[^>]*>?|[-+]?\b[0-9][0-9a-fA-FxX.eE+_-]*`)

// WithoutQuotes returns the text of an error that may quote a payload, without the quotations.
func WithoutQuotes(err error) string { return quoted.ReplaceAllString(OfError(err), "…") }
