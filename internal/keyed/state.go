package keyed

import "time"

// Watermark returns the lowest position that is not done, or the one after the last if all are done.
func (w *Window[T]) Watermark() int64 {
	if w.oldest != nil {
		return w.oldest.Pos
	}
	return w.after
}

// Oldest returns the message at the watermark, or nil.
func (w *Window[T]) Oldest() *Item[T] { return w.oldest }

// Full reports whether reading should stop.
func (w *Window[T]) Full() bool {
	return w.records >= w.limits.Records || w.limits.Bytes > 0 && w.bytes >= w.limits.Bytes
}

// HalfEmpty reports whether, after Full, enough messages are done to resume reading.
func (w *Window[T]) HalfEmpty() bool {
	return w.records <= w.limits.Records/2 && (w.limits.Bytes == 0 || w.bytes <= w.limits.Bytes/2)
}

// Records returns the number of messages above the watermark, done or not.
func (w *Window[T]) Records() int { return w.records }

// Undone returns the number of unfinished messages.
func (w *Window[T]) Undone() int { return w.undone }

// Bytes returns the size of the unfinished messages.
func (w *Window[T]) Bytes() int64 { return w.bytes }

// Failing returns the number of unfinished messages that have failed: each blocks its key, if it has one. since is the
// time of the earliest first failure.
func (w *Window[T]) Failing() (n int, since time.Time) {
	for i, it := range w.failing {
		if i == 0 || it.Since.Before(since) {
			since = it.Since
		}
	}
	return len(w.failing), since
}
