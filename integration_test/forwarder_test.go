package integration_test

import (
	"testing"
	"time"
)

// TestFirstMessageOfADatabase: the sequence was never used when the forwarder first reads it.
func TestFirstMessageOfADatabase(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		w := startForwarder(t, h, quickConfig())
		w.idle(t)
		begun := time.Now()
		w.publish(t, "orders", "key", "1")
		w.arrives(t, "1")
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("took %s", took)
		}
	})
}
