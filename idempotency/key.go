package idempotency

import (
	"errors"
	"net/http"
	"strings"
)

// HeaderKey is the header with the client's key for a request.
const HeaderKey = "Idempotency-Key"

// maxKeyBytes is the maximum size of a key.
const maxKeyBytes = 255

var (
	errManyKeys = errors.New("idempotency key not valid: there is more than one header: send one")
	errBadKey   = errors.New(`idempotency key not valid: send 1 to 255 visible ASCII characters without ` +
		`space, comma, quote and backslash, or a quoted string as in RFC 8941, such as ` +
		`"8e03978e-40d5-43e8-bc93-6894a57f9324"`)
)

// keyOf returns the key of a request, or "". It accepts the quoted string of the draft standard, and the unquoted form
// that most clients send. Both are the same key.
func keyOf(r *http.Request) (string, error) {
	values := r.Header.Values(HeaderKey)
	switch len(values) {
	case 0:
		return "", nil
	case 1:
	default:
		return "", errManyKeys
	}
	key, ok := strings.Trim(values[0], " \t"), true
	if strings.HasPrefix(key, `"`) {
		key, ok = unquoted(key)
	} else {
		ok = !strings.ContainsAny(key, ` ,;"\`)
	}
	if !ok || key == "" || len(key) > maxKeyBytes ||
		strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' }) {
		return "", errBadKey
	}
	return key, nil
}

// unquoted parses an RFC 8941 string. Anything after it, even parameters, is an error: the draft gives it no meaning.
func unquoted(s string) (string, bool) {
	if len(s) < 2 || !strings.HasSuffix(s, `"`) {
		return "", false
	}
	var b strings.Builder
	s = s[1 : len(s)-1]
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return "", false
		case s[i] == '\\':
			if i++; i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", false
			}
		}
		b.WriteByte(s[i])
	}
	return b.String(), true
}
