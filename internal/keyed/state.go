package keyed

import "time"

// Watermark is the lowest position that is not done; if all are, it is the one after the last.
func (w *Window[T]) Watermark() int64 {
	if w.oldest != nil {
		return w.oldest.Pos
	}
	return w.after
}

// Oldest is the message that the watermark stands at; nil = there is none.
func (w *Window[T]) Oldest() *Item[T] { return w.oldest }

// Full says that no more should be read.
func (w *Window[T]) Full() bool {
	return w.records >= w.limits.Records || w.limits.Bytes > 0 && w.bytes >= w.limits.Bytes
}

// HalfEmpty says that, after Full, enough is done to read on.
func (w *Window[T]) HalfEmpty() bool {
	return w.records <= w.limits.Records/2 && (w.limits.Bytes == 0 || w.bytes <= w.limits.Bytes/2)
}

// Records is how many messages lie above the watermark, done or not.
func (w *Window[T]) Records() int { return w.records }

// Undone is how many of them are not done.
func (w *Window[T]) Undone() int { return w.undone }

// Bytes is the size of those.
func (w *Window[T]) Bytes() int64 { return w.bytes }

// Failing is how many messages failed and are not done: each of them blocks its key, or has none. Since is when the
// first of them failed for the first time.
func (w *Window[T]) Failing() (n int, since time.Time) {
	for i, it := range w.failing {
		if i == 0 || it.Since.Before(since) {
			since = it.Since
		}
	}
	return len(w.failing), since
}
