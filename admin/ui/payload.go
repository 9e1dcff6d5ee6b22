package ui

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxText = 16 << 10
	maxHex  = 1 << 10
)

// preview is a payload as the page shows it.
type preview struct {
	Kind, Text string
	Bytes      int64
	Cut        int // full size in bytes if only the beginning is shown; 0 = all is shown
}

// previewOf makes a preview: indented JSON, other text unchanged, and everything else as numbers.
func previewOf(payload []byte) preview {
	switch {
	case payload == nil:
		return preview{Kind: "null"}
	case len(payload) == 0:
		return preview{Kind: "empty"}
	}
	p := preview{Kind: "text", Bytes: int64(len(payload))}
	shown := payload
	if json.Valid(payload) {
		var b bytes.Buffer
		if p.Kind = "JSON"; len(payload) <= maxText && json.Indent(&b, payload, "", "  ") == nil {
			shown = b.Bytes()
		}
	}
	if len(shown) > maxText {
		shown, p.Cut = shown[:maxText], len(payload)
		for i := 0; i < utf8.UTFMax && !utf8.Valid(shown); i++ { // a character may be cut
			shown = shown[:len(shown)-1]
		}
	}
	if utf8.Valid(shown) && !strings.ContainsFunc(string(shown), func(r rune) bool {
		return unicode.IsControl(r) && !unicode.IsSpace(r)
	}) {
		p.Text = reveal(string(shown), true)
		return p
	}
	p.Kind, p.Cut = "binary", 0
	if len(payload) > maxHex {
		p.Cut, payload = len(payload), payload[:maxHex]
	}
	p.Text = hex.Dump(payload)
	return p
}
