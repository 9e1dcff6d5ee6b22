package idempotency

import (
	"bufio"
	"bytes"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"slices"
	"strings"
	"testing"
)

// FuzzKey: an accepted key can be stored and logged, and is the same key when quoted as an RFC 8941 string.
func FuzzKey(f *testing.F) {
	var visible string
	for c := ' '; c <= '~'; c++ {
		visible += string(c)
	}
	for _, s := range []string{"8e03978e-40d5", `"a b"`, `"a\"b\\"`, `"a\c"`, `"`, `"a";x=1`, " k ", "\x7f", "é", "a,b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		key, err := keyOf(&http.Request{Header: http.Header{HeaderKey: {header}}})
		if err != nil {
			if key != "" {
				t.Errorf("%q is rejected but returns %q", header, key)
			}
			return
		}
		if key == "" || len(key) > maxKeyBytes || strings.Trim(key, visible) != "" {
			t.Errorf("%q is %q", header, key)
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, err := keyOf(&http.Request{Header: http.Header{HeaderKey: {quoted}}}); err != nil || again != key {
			t.Errorf("%q is %q, and %s is %q, %v", header, key, quoted, again, err)
		}
	})
}

// FuzzAnswer: on the wire, a replay equals the first response byte for byte, except for headers that are not stored.
func FuzzAnswer(f *testing.F) {
	f.Add(200, "X-A", "b", "{}")
	f.Add(204, "Location", "/a: b\r\nX-C: d", "")
	f.Add(409, "X a", "\xff\x00", "\x00")
	f.Add(201, "content-type", "", "<html>")
	f.Fuzz(func(t *testing.T, status int, name, value, body string) {
		if status < 200 || status > 599 || !hasBody(status) && body != "" || strings.EqualFold(name, "Connection") {
			return
		}
		r := newRecorder(http.Header{}, 1<<20, nil)
		r.Header().Add(name, value)
		r.Header().Add(name, "second")
		r.WriteHeader(status)
		_, _ = r.Write([]byte(body)) // only for a status that allows a body
		stored, err := responseOf(r, dropsOf(nil), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		direct, replayed := httptest.NewRecorder(), httptest.NewRecorder()
		r.send(direct)
		stored.replay(replayed)
		want, err := onWire(direct.Header())
		if err != nil {
			return // no client could read it
		}
		got, err := onWire(replayed.Header())
		if err != nil {
			t.Fatal(err)
		}
		drops := dropsOf(nil)
		delete(drops, "Content-Length")
		maps.DeleteFunc(want, func(h string, _ []string) bool {
			return drops[h] || slices.ContainsFunc(droppedPrefixes, func(p string) bool { return strings.HasPrefix(h, p) })
		})
		delete(got, HeaderReplayed)
		if direct.Code != replayed.Code || !bytes.Equal(direct.Body.Bytes(), replayed.Body.Bytes()) ||
			!maps.EqualFunc(want, got, slices.Equal[[]string]) {
			t.Errorf("%d %q %q became %d %q %q", direct.Code, want, direct.Body, replayed.Code, got, replayed.Body)
		}
	})
}

// onWire returns a header as read by a client.
func onWire(h http.Header) (http.Header, error) {
	var lines bytes.Buffer
	if err := h.Write(&lines); err != nil {
		return nil, err
	}
	lines.WriteString("\r\n")
	read, err := textproto.NewReader(bufio.NewReader(&lines)).ReadMIMEHeader()
	return http.Header(read), err
}
