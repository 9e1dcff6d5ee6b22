//go:build !linux

package dispatch_test

import "time"

var started = time.Now()

// cpuTime is how long this test has run: the time of a thread is not known here.
func cpuTime() time.Duration { return time.Since(started) }
