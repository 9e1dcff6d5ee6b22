package trouble

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// TestABrokenDatabaseIsSkippedForLonger each time, but never for too long.
func TestABrokenDatabaseIsSkippedForLonger(t *testing.T) {
	var got []string
	b := Breaker{Logger: lines{all: &got}, What: "polling"}
	now, first := time.Now(), time.Duration(0)
	for n := range 40 {
		wait := b.Failed(now, errors.New("down"))
		if first == 0 {
			first = wait
		}
		if wait <= 0 || wait > 2*time.Minute || n > 10 && wait < 20*time.Second || n == 5 && wait < 4*first {
			t.Errorf("failure %d is followed by a wait of %s, the first was %s", n+1, wait, first)
		}
		if !b.Failing() || !b.Until().Equal(now.Add(wait)) {
			t.Error("it is closed")
		}
		now = now.Add(wait)
	}
	b.Worked()
	b.Worked()
	if b.Failing() || !b.Until().IsZero() {
		t.Error("it is open")
	}
	b.Logger = watermill.NopLogger{}
	if wait := b.Failed(now, errors.New("down")); wait > 2*first {
		t.Errorf("a wait of %s after it worked", wait)
	}
	logged := map[string]int{}
	for _, line := range got {
		logged[line]++
	}
	if want := map[string]int{
		"error: polling failed: the database is skipped, for longer each time: down": 1,
		"debug: polling still fails": 39, "info: polling works again": 1,
	}; fmt.Sprint(logged) != fmt.Sprint(want) {
		t.Errorf("%v is logged", logged)
	}
}
