package queue

import (
	"testing"
	"time"
)

// TestStrangersAreNotChargedForAnHour and are warned of once a minute.
func TestStrangersAreNotChargedForAnHour(t *testing.T) {
	s, now := strangers{}, time.Now()
	for _, step := range []struct {
		after        time.Duration
		warn, charge bool
		wait         time.Duration
	}{
		{0, true, false, time.Second},
		{20 * time.Second, false, false, 20 * time.Second},
		{40 * time.Second, true, false, time.Minute},
		{58 * time.Minute, true, false, time.Minute},
		{time.Minute, true, true, time.Minute},
		{time.Second, false, true, time.Minute},
		{time.Hour, true, false, time.Second}, // it is another story by now
	} {
		now = now.Add(step.after)
		warn, charge, wait := s.met("topic", now)
		if warn != step.warn || charge != step.charge || wait != step.wait {
			t.Errorf("after %s: warn %v, charge %v, wait %s", step.after, warn, charge, wait)
		}
	}
	if warn, charge, _ := s.met("other", now); !warn || charge {
		t.Error("topics have nothing to do with each other")
	}
}
