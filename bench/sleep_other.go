//go:build !linux

package main

import (
	"time"
)

// sleepExactly sleeps; on this system it is no more accurate than time.Sleep.
func sleepExactly(d time.Duration) { time.Sleep(d) }
