//go:build !linux

package dispatch_test

import "time"

var started = time.Now()

// cpuTime returns how long this test has run: the time of a thread is unknown here.
func cpuTime() time.Duration { return time.Since(started) }
