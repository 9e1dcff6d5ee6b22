package outbox

import (
	"regexp"
	"strconv"
	"testing"
	"time"
)

var graceShape = regexp.MustCompile(`terminationGracePeriodSeconds: (\d+)`)

// TestGracePeriodIsSaid: README and the page on Kubernetes name a grace period, and Run ends 5 s before it is over.
func TestGracePeriodIsSaid(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"README.md", "docs/guides/kubernetes.md"} {
		m := graceShape.FindStringSubmatch(read(t, page))
		if m == nil {
			t.Errorf("%s does not say what terminationGracePeriodSeconds must be", page)
			continue
		}
		if s, _ := strconv.Atoi(m[1]); time.Duration(s)*time.Second < defaultCloseTimeout+5*time.Second {
			t.Errorf("%s: %s is over before Run has ended, which may take %s", page, m[0], defaultCloseTimeout)
		}
	}
}
