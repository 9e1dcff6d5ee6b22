package main

import (
	"syscall"
	"time"
)

// sleepExactly sleeps, accurate to a tenth of a millisecond. time.Sleep is not: in a process with network connections
// it rounds up to the next millisecond after each event on one of them. It keeps a thread busy, so it is for a few
// sleepers only.
func sleepExactly(d time.Duration) {
	left := syscall.NsecToTimespec(int64(d))
	for syscall.Nanosleep(&left, &left) == syscall.EINTR {
	}
}
