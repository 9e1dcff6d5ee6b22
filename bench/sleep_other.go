//go:build !linux

package main

import (
	"time"
)

// sleepExactly waits, on this system no more exactly than time.Sleep does.
func sleepExactly(d time.Duration) { time.Sleep(d) }
