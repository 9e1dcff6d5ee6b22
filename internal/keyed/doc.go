// Package keyed decides which messages of one source (a Kafka partition, a JetStream consumer) may be handled now:
// messages of a key one after another, different keys concurrently. A message that failed blocks its key, and
// nothing else.
//
// It is pure: it knows no clock, no broker and no message, only positions, keys and sizes. One goroutine owns a Window.
// It calls Add for messages read, Start for messages handed out, and Done or Hold for their outcome:
//
//	Add --> behind others of its key --head of its key--> ready --Start--> running --Done--> the next of its key is ready
//	                                                        ^                 |
//	                                                        +-- Wake <-- held <- Hold
//
// # Order
//
// A message is started only when all earlier ones of its key that were added are done. A message without a key waits
// for no other.
//
// Of those that are ready, Start returns the one with the lowest position, not the one that became ready first. If it
// were the latter, the next message of a key would wait behind the heads of all other keys of the window, the oldest
// messages of the window would be among the last to be done, and the watermark would trail by the whole window.
//
// # Watermark
//
// Watermark is the position of the oldest message that is not done, or the one after the last if all are. All below it
// is done, so it is what may be committed. Positions have gaps (compaction, transactions), so it is never computed,
// only looked up.
//
// # Bounds
//
// Full says that no more should be read: Limits.Records messages lie above the watermark, done or not, as all of them
// are delivered again after a crash; or those that are not done have Limits.Bytes. What is added all the same is taken:
// a source that is paused may have some in hand. HalfEmpty says that it is time to read on. With Limits.Forget, what is
// done is not counted and not kept.
//
// # Retries
//
// Messages that failed before are ready apart from the others, and Start returns one only if it is asked to. So code
// that hands out places can leave some of them to messages that never failed: see [Retries]. Otherwise as many slow
// failing keys as there are places would stop all others.
//
// # Positions out of order
//
// A source may bring a position that is below others which were added before, as JetStream does when it redelivers.
// Such a message takes its place in its key by its position: before those that wait or are held, but behind one that is
// running. The watermark may fall then. A position that is in the window already is not added.
package keyed
