package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/millrace-go/watermill-outbox/internal/words"
)

// clean escapes unprintable characters.
func clean(s string) string { return words.Clean(s, false) }

// printable escapes unprintable characters that JSON allows. Outside strings JSON has none.
func printable(encoded []byte) []byte {
	var b bytes.Buffer
	for len(encoded) > 0 {
		r, n := utf8.DecodeRune(encoded)
		switch {
		case r < 0x7f || unicode.IsPrint(r):
			b.Write(encoded[:n])
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		encoded = encoded[n:]
	}
	return b.Bytes()
}

// write prints with the arguments cleaned.
func write(w io.Writer, format string, args ...any) error {
	for i, arg := range args {
		switch v := arg.(type) {
		case string:
			args[i] = clean(v)
		case error:
			args[i] = indented(v.Error())
		case fmt.Stringer:
			args[i] = indented(v.String())
		}
	}
	_, err := fmt.Fprintf(w, format+"\n", args...)
	return err
}

// indented cleans a text that may have several lines, and indents them so that none looks like one of ours.
func indented(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	for i, line := range lines {
		lines[i] = clean(strings.ReplaceAll(strings.TrimRight(line, "\r"), "\t", "  "))
	}
	return strings.Join(lines, "\n    ")
}

// say prints a result.
func (a *app) say(format string, args ...any) error { return write(a.out, format, args...) }

// inform prints output that is not a result: a hint, or progress.
func (a *app) inform(format string, args ...any) { _ = write(a.err, format, args...) }

func (a *app) complain(format string, args ...any) { a.inform("outboxctl: "+format, args...) }

// json prints a value on several lines, or on one.
func (a *app) json(value any, oneLine bool) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if !oneLine {
		encoder.SetIndent("", "  ")
	}
	if err := encoder.Encode(value); err != nil {
		return err
	}
	_, err := a.world.Out.Write(printable(b.Bytes()))
	return err
}

// isJSON reports whether the output is JSON.
func (a *app) isJSON() bool { return a.global.output == "json" }

// show prints a value as JSON, or for people.
func (a *app) show(value any, people func() error) error {
	if a.isJSON() {
		return a.json(value, false)
	}
	return people()
}
