package cursor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// FuzzSnapshot: a parsed snapshot has the content of its text, in order, and nothing else.
func FuzzSnapshot(f *testing.F) {
	for _, s := range []string{"10:20:", "10:20:11,15", "10:20", "::", "1:2:3,", "1:-2:+3", "1:9223372036854775808:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSnapshot(text, 1, 2)
		if err != nil {
			return
		}
		parts := strings.Split(text, ":")
		xids := slices.DeleteFunc(strings.Split(parts[2], ","), func(x string) bool { return x == "" })
		if s.NextXid != 1 || s.Seq != 2 || len(xids) != len(s.InProgress) {
			t.Fatalf("%q is %+v", text, s)
		}
		for i, x := range append(xids, parts[1]) {
			if n := append(s.InProgress, s.Xmax)[i]; strings.TrimLeft(x, "+-0") != strings.Trim(fmt.Sprint(n), "-0") &&
				strings.TrimLeft(x, "+-0") != strings.TrimLeft(fmt.Sprint(n), "-0") {
				t.Errorf("%q has %d for %q", text, n, x)
			}
		}
	})
}
