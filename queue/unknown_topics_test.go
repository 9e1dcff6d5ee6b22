package queue

import (
	"strconv"
	"testing"
	"time"
)

// TestUnknownTopicsWaitLongerAndLonger, with a warning once a minute.
func TestUnknownTopicsWaitLongerAndLonger(t *testing.T) {
	const always = 10 * 365 * 24 * time.Hour // the message exists all this time
	s, now := unknownTopics{}, time.Now()
	for _, step := range []struct {
		after time.Duration
		warn  bool
		wait  time.Duration
	}{
		{0, true, time.Second},
		{20 * time.Second, false, 20 * time.Second},
		{40 * time.Second, true, time.Minute},
		{58 * time.Minute, true, time.Minute},
		{time.Minute, true, time.Minute},
		{time.Second, false, time.Minute + time.Second/unknownTopicShare},
		{time.Hour, true, 2*time.Minute + time.Second/unknownTopicShare},
		{time.Hour, true, 3*time.Minute + time.Second/unknownTopicShare},
		{2 * time.Hour, true, time.Second}, // by then the topic counts as new
	} {
		now = now.Add(step.after)
		warn, wait := s.seen("topic", now, always)
		if warn != step.warn || wait != step.wait {
			t.Errorf("after %s: warn %v, wait %s", step.after, warn, wait)
		}
	}
	for range 100 {
		now = now.Add(time.Hour)
		_, wait := s.seen("topic", now, always)
		if wait > maxUnknownTopicWait {
			t.Fatalf("waits %s", wait)
		}
	}
	if _, wait := s.seen("topic", now, 2*time.Hour); wait != 2*time.Minute {
		t.Errorf("a new topic waits %s", wait)
	}
	if warn, wait := s.seen("other", now, always); !warn || wait != time.Second {
		t.Error("topics affect each other")
	}
	for i := range 2 * maxUnknownTopics {
		s.seen(strconv.Itoa(i), now, always)
	}
	if len(s) > maxUnknownTopics {
		t.Errorf("%d topics are remembered", len(s))
	}
}
