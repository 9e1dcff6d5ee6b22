package core

import (
	"strings"
	"testing"
	"time"
)

func TestBackoffGrowsAndEnds(t *testing.T) {
	b := Backoff{Initial: 10 * time.Millisecond, Max: time.Second}
	for i, want := range []time.Duration{10, 20, 40, 80, 160, 320, 640, 1000, 1000} {
		want *= time.Millisecond
		for range 100 {
			if d := b.Delay(i + 1); d < want*8/10 || d > want*12/10 {
				t.Fatalf("Delay(%d) = %s, want about %s", i+1, d, want)
			}
		}
	}
	if d := b.Delay(1 << 30); d > 1200*time.Millisecond {
		t.Errorf("Delay of many failures = %s", d)
	}
	if d := (Backoff{Initial: -1}).WithDefaults(time.Second, time.Minute).Delay(5); d != 0 {
		t.Errorf("switched off, it waits %s", d)
	}
	own := Backoff{Func: func(n int) time.Duration {
		return time.Duration(n-2) * time.Second
	}}.WithDefaults(time.Hour, time.Hour)
	if own.Delay(5) != 3*time.Second || own.Delay(1) != 0 {
		t.Errorf("Func is not used: %s %s", own.Delay(5), own.Delay(1))
	}
}

func TestBackoffIsAskedOnce(t *testing.T) {
	calls := 0
	b, err := Backoff{Func: func(n int) time.Duration { calls++; return time.Duration(n) }}.Precomputed("F")
	if err != nil {
		t.Fatal(err)
	}
	asked := calls
	for n, want := range map[int]time.Duration{0: 1, 1: 1, 7: 7, 64: 64, 1 << 30: 64} {
		if d := b.Delay(n); d != want {
			t.Errorf("Delay(%d) = %d, want %d", n, d, want)
		}
	}
	if calls != asked {
		t.Error("Func was called again")
	}
	if _, err := (Backoff{Func: func(int) time.Duration { panic("no") }}).Precomputed("F"); err == nil ||
		err.Error() != "F.Func: panic: no" {
		t.Errorf("the wait after a panic is %v", err)
	}
}

func TestBackoffDefaultsAndValidation(t *testing.T) {
	if b := (Backoff{Initial: time.Hour}).WithDefaults(time.Second, time.Minute); b.Max != time.Hour {
		t.Errorf("Max is %s", b.Max)
	}
	for want, b := range map[string]Backoff{"F.Initial": {Initial: -2}, "F.Max": {Initial: 2, Max: 1}} {
		if err := b.WithDefaults(time.Second, time.Minute).Validate("F"); err == nil ||
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v", b, err)
		}
	}
}
