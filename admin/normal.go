package admin

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// maxNormal is the length of the part of an error that determines its group.
const maxNormal = 512

// groupID returns the id of an error's group: the same for errors that differ only in numbers, ids and quoted text. It
// is the same in every process and version, so that people can write it down.
func groupID(err string) string {
	return groupOfRedacted(text.Redact(err))
}

func groupOfRedacted(err string) string {
	if err == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(normal(err)))
	return hex.EncodeToString(sum[:8])
}

// normal replaces the parts of an error that vary between occurrences. It is written by hand because it runs over every
// error in a batch, and regular expressions take twenty times as long.
func normal(err string) string {
	var out strings.Builder
	space := false
	for i := 0; i < len(err) && out.Len() < maxNormal; {
		if c := err[i]; c <= ' ' {
			space = true
			i++
			continue
		}
		if space && out.Len() > 0 {
			out.WriteByte(' ')
		}
		space = false
		n, placeholder := variable(err, i)
		if n == 0 {
			n, placeholder = 1, err[i:i+1]
		}
		out.WriteString(placeholder)
		i += n
	}
	return strings.ToValidUTF8(out.String(), "")
}

// variable returns how many bytes from i on vary between occurrences, and their placeholder.
func variable(s string, i int) (n int, placeholder string) {
	if n := quoted(s, i); n > 0 {
		return n, s[i:i+1] + "…" + s[i:i+1]
	}
	if !isHex(s[i]) || i > 0 && isWord(s[i-1]) && !isDigit(s[i]) {
		return 0, ""
	}
	if isUUID(s[i:]) {
		return uuidLength, "<id>"
	}
	end, digits := i, 0
	if strings.HasPrefix(s[i:], "0x") {
		end += 2
	}
	for start := end; end < len(s) && isHex(s[end]); end++ {
		if isDigit(s[end]) {
			digits++
		}
		if end-start == 0 && start > i {
			digits++ // 0xff is hex even without digits
		}
	}
	whole := end == len(s) || !isWord(s[end])
	if before := i > 0 && isWord(s[i-1]); !before && whole && digits > 0 && end-i > digits &&
		(end-i >= 8 || s[i] == '0' && end-i > 2 && s[i+1] == 'x') {
		return end - i, "<n>" // hex that consists of digits only is a number
	}
	if !isDigit(s[i]) {
		return 0, ""
	}
	for end = i; end < len(s) &&
		(isDigit(s[end]) || end+1 < len(s) && strings.IndexByte(".,:", s[end]) >= 0 && isDigit(s[end+1])); end++ {
	}
	return end - i, "<n>"
}

// quoted returns the length of quoted text that begins at i; an apostrophe within a word does not begin one.
func quoted(s string, i int) int {
	quote := s[i]
	if quote != '"' && quote != '\'' && quote != '`' || quote == '\'' && i > 0 && isWord(s[i-1]) {
		return 0
	}
	for end := i + 1; end < len(s) && s[end] != '\n'; end++ {
		if s[end] == '\\' && quote == '"' {
			end++
			continue
		}
		if s[end] == quote && (quote != '\'' || end+1 == len(s) || !isWord(s[end+1])) {
			return end + 1 - i
		}
	}
	return 0
}

const uuidLength = 36

func isUUID(s string) bool {
	if len(s) < uuidLength || len(s) > uuidLength && isWord(s[uuidLength]) {
		return false
	}
	for i := range uuidLength {
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (s[i] == '-') || !dash && !isHex(s[i]) {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isHex(c byte) bool   { return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }
func isWord(c byte) bool {
	return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || c >= 0x80
}
