// Package keyed decides which messages of one source (a Kafka partition, a JetStream consumer) may be handled now:
// messages of a key one after another, different keys concurrently. A failed message blocks only its key.
//
// It knows only positions, keys and sizes: no clock, broker or message. One goroutine owns a Window. It calls Add for
// messages read, Start to deliver one, and Done or Hold for its outcome:
//
//	Add --> behind others of its key --head of its key--> ready --Start--> running --Done--> the next of its key is ready
//	                                                        ^                 |
//	                                                        +-- Wake <-- held <- Hold
//
// # Order
//
// A message starts only when all earlier messages of its key that were added are done. Messages without a key are not
// ordered.
//
// Of the ready messages, Start returns the one with the lowest position, not the one that became ready first. Otherwise
// the next message of a key would wait behind the heads of all other keys in the window, the oldest messages of the
// window would be among the last to be done, and the watermark would trail by the whole window.
//
// # Watermark
//
// Watermark is the position of the oldest message that is not done, or the one after the last if all are done. All
// messages below it are done, so it may be committed. Positions have gaps (compaction, transactions), so it is never
// computed, only taken from a message.
//
// # Limits
//
// Full means that no more should be read: Limits.Records messages lie above the watermark, done or not, because all of
// them are delivered again after a crash; or the unfinished ones have Limits.Bytes. Add still accepts messages, because
// a paused source may have fetched some already. HalfEmpty means that reading should resume. With Limits.Forget,
// finished messages are neither counted nor kept.
//
// # Retries
//
// Messages that failed before are ready separately from the others, and Start returns one only if asked to. So the
// owner can reserve some slots for messages that never failed: see [Retries]. Otherwise as many slowly failing keys as
// there are slots would stop all others.
//
// # Positions out of order
//
// A source may deliver a position below others that were added before, as JetStream does when it redelivers. Such a
// message takes its place in its key by its position: before messages that wait or are held, but behind a running one.
// Then the watermark may go back. A position that is already in the window is not added.
package keyed
