package forwarder_test

import (
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

// Each delay has a jitter of a fifth either way, so that what failed together does not come back together.
func ExampleBackoff() {
	b := forwarder.Backoff{Initial: time.Second, Max: 10 * time.Second}
	for n, middle := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second} {
		d := b.Delay(n + 1)
		fmt.Println("after failure", n+1, "about", middle, d >= middle*8/10 && d <= middle*12/10)
	}
	// Output:
	// after failure 1 about 1s true
	// after failure 2 about 2s true
	// after failure 3 about 4s true
	// after failure 4 about 8s true
	// after failure 5 about 10s true
}
