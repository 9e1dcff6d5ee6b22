// Package inbound is shared by the subscribers that read a broker by key: one subscription per topic (Topics), the
// channel to the Router (Deliverer), the user code that converts records to messages (Codec), and reports to observers
// (Reports). Package keyed decides which message may be delivered; the subscribers ack messages to the broker.
//
// The end of a subscription never waits for user code. If an observer, a Key or an Unmarshaler hangs, it only occupies
// a goroutine: Close returns, the channel is closed, and a message that the code returns later does not reach a
// handler.
package inbound
