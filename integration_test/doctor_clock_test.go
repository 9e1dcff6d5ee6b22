package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/watermill-outbox/admin"
)

// TestDoctorOfClocks: a clock of the database that is 10 s off, either way, is found; 4 s are not.
func TestDoctorOfClocks(t *testing.T) {
	t.Parallel()
	h := skewed(t)
	off := func(d time.Duration) {
		h.exec(t, "update skew.clock set off = $1::float8 * interval '1 s'", d.Seconds())
	}
	for _, d := range []time.Duration{10 * time.Second, -10 * time.Second} {
		off(d)
		f := ails(t, h, "clock")
		assert.Equal(t, admin.Warning, f.Severity, d)
		assert.Regexp(t, `the clock of this machine and that of the database differ by (9|10)(\.\d)?s`, f.Evidence, d)
		assert.Contains(t, f.Cure, "synchronise both")
	}
	for _, d := range []time.Duration{4 * time.Second, -4 * time.Second, 0} {
		off(d)
		assert.NotContains(t, findings(t, h), "clock", d)
	}
}
