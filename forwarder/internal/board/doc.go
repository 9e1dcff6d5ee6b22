// Package board knows the messages in a forwarder's lanes: what was read, what is being published, what waits and
// for what. It is pure: no clock, goroutine, lock or I/O.
package board
