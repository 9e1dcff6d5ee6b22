package board

import "time"

// Next starts a call, or returns nil if none may start now. The caller publishes the row and tells Returned.
func (b *Board) Next(now time.Time) *Call { return nil }

// Returned takes the result of a call, also a late one. A call that returned before counts once.
func (b *Board) Returned(now time.Time, c *Call, r Result) {}

// TimedOut takes the result of a call that Effects.Expired named. It is ignored if the call returned meanwhile; else the
// call is hung.
func (b *Board) TimedOut(now time.Time, c *Call, r Result) {}

// Tick lets calls grow slow and expire, and repeats reports.
func (b *Board) Tick(now time.Time) {}

// Due returns when Tick is wanted next, and when a read is, though nobody asked; zero = not. Either may have passed.
func (b *Board) Due() (tick, read time.Time) { return }
