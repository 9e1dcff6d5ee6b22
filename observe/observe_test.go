package observe

import "testing"

func TestOutcomeNames(t *testing.T) {
	seen := map[string]bool{}
	for o := Failed; o <= Dead; o++ {
		if s := o.String(); s == "unknown" || seen[s] {
			t.Errorf("outcome %d is called %q", o, s)
		} else {
			seen[s] = true
		}
	}
}
