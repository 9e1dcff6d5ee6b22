package docs

import (
	"regexp"
	"strconv"
	"testing"
)

var (
	graceShape = regexp.MustCompile(`terminationGracePeriodSeconds: (\d+)`)
	closeShape = regexp.MustCompile(`defaultCloseTimeout = (\d+) \* time\.Second`)
)

// TestGracePeriodIsSaid: README and the page on Kubernetes name a grace period, and Run ends 5 s before it is over.
func TestGracePeriodIsSaid(t *testing.T) {
	t.Parallel()
	m := closeShape.FindStringSubmatch(read(t, "run.go"))
	if m == nil {
		t.Fatal("run.go names no time-out")
	}
	closing, _ := strconv.Atoi(m[1])
	for _, page := range []string{"README.md", "docs/guides/kubernetes.md"} {
		m := graceShape.FindStringSubmatch(read(t, page))
		if m == nil {
			t.Errorf("%s does not say what terminationGracePeriodSeconds must be", page)
			continue
		}
		if s, _ := strconv.Atoi(m[1]); s < closing+5 {
			t.Errorf("%s: %s is over before Run has ended, which may take %d s", page, m[0], closing)
		}
	}
}
