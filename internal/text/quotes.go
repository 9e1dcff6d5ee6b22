package text

import "regexp"

// quoted matches what errors of decoders quote of their input: quotations, unfinished ones too, and numbers.
var quoted = regexp.MustCompile("'(?:[^'\\\\]|\\\\.)*'?" + `|"(?:[^"\\]|\\.)*"?` + "|`[^`]*`?" +
	`|<[^>]*>?|[-+]?\b[0-9][0-9a-fA-FxX.eE+_-]*`)

// WithoutQuotes is the text of an error that may quote a payload, without the quotations.
func WithoutQuotes(err error) string { return quoted.ReplaceAllString(OfError(err), "…") }
