package drive

import (
	"encoding/hex"
	"math"
	"slices"
	"strings"
	"testing"
)

// parseArray reads an array literal as Postgres does.
func parseArray(t *testing.T, literal string) []string {
	t.Helper()
	body, ok := strings.CutPrefix(literal, "{")
	if body, ok2 := strings.CutSuffix(body, "}"); ok && ok2 {
		elements := []string{}
		for len(body) > 0 {
			var e strings.Builder
			if body[0] == '"' {
				i := 1
				for ; body[i] != '"'; i++ {
					if body[i] == '\\' {
						i++
					}
					e.WriteByte(body[i])
				}
				body = body[i+1:]
			} else {
				end := strings.IndexByte(body+",", ',')
				if strings.ContainsAny(body[:end], `"\{} `) || end == 0 || strings.EqualFold(body[:end], "NULL") {
					t.Fatalf("%s: unquoted %q", literal, body[:end])
				}
				e.WriteString(body[:end])
				body = body[end:]
			}
			elements = append(elements, e.String())
			if body != "" {
				if body[0] != ',' || len(body) == 1 {
					t.Fatalf("%s: %q follows an element", literal, body)
				}
				body = body[1:]
			}
		}
		return elements
	}
	t.Fatalf("%s: no braces", literal)
	return nil
}

func FuzzTextArrays(f *testing.F) {
	for _, s := range []string{"", "NULL", `"`, `\`, `a,b`, "{}", " ", "é\n\x01", `\"`, `"\\"`} {
		f.Add(s, "second")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, want := range [][]string{{a, b}, {b, a, a}, {a}, {}} {
			got := parseArray(t, ArrayArgs([]any{want})[0].(string))
			if !slices.Equal(got, want) {
				t.Errorf("%q was encoded as %q", want, got)
			}
		}
	})
}

func FuzzByteArrays(f *testing.F) {
	f.Add([]byte{}, []byte{0, 255, '"', '\\'})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		for i, e := range parseArray(t, ArrayArgs([]any{[][]byte{a, b}})[0].(string)) {
			got, err := hex.DecodeString(strings.TrimPrefix(e, `\x`))
			if err != nil || !slices.Equal(got, [][]byte{a, b}[i]) {
				t.Errorf("%x was encoded as %s", [][]byte{a, b}[i], e)
			}
		}
	})
}

func TestArrayArgs(t *testing.T) {
	got := ArrayArgs([]any{
		[]int64{-1, math.MaxInt64}, []float64{0.1, -1e300, 5}, []bool{true, false}, []int64{}, []string(nil), []float64(nil),
		[][]byte(nil),
		"plain", []byte("bytes"), nil, 7, true,
	})
	want := []any{
		"{-1,9223372036854775807}", "{0.1,-1e+300,5}", "{true,false}", "{}", nil, nil, nil,
		"plain", "bytes", nil, 7, true,
	}
	for i := range want {
		if b, ok := got[i].([]byte); ok {
			got[i] = string(b)
		}
		if got[i] != want[i] {
			t.Errorf("argument %d is %v, want %v", i, got[i], want[i])
		}
	}
}
