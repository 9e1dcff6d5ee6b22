package trouble

import (
	"testing"
	"time"
)

// TestSilenceLastsLongerEachTime, because all servers may be affected, until one responds.
func TestSilenceLastsLongerEachTime(t *testing.T) {
	s, now := StallDetector{Limit: time.Minute}, time.Unix(1e9, 0)
	untilOver := func() (lasts time.Duration) {
		t.Helper()
		for {
			if lasts, over := s.Unanswered(now, now); over {
				s.TriedAnother()
				return lasts
			}
			now = now.Add(time.Second)
		}
	}
	for _, want := range []time.Duration{1, 2, 4, 6, 6} {
		if lasts := untilOver(); lasts != want*time.Minute {
			t.Errorf("another server is tried after %s, want %d minutes", lasts, want)
		}
	}
	s.Answered()
	if lasts := untilOver(); lasts != time.Minute {
		t.Errorf("another server is tried after %s, want a minute after a response", lasts)
	}
}

func TestSilenceForgivesWhatBeganLongAgo(t *testing.T) {
	s, now := StallDetector{Limit: time.Minute}, time.Unix(1e9, 0)
	if lasts, over := s.Unanswered(now, now.Add(-time.Hour)); lasts != 30*time.Second || over {
		t.Errorf("the stall lasts %s although some requests may have got responses", lasts)
	}
}
