// Package inbound is shared by the subscribers that read a broker by key: one subscription per topic (Topics), the
// channel to the Router (Deliverer), the user's code that converts records to messages (Codec), and reports to
// observers (Reports). Package keyed decides which message may be handed out; acks to the broker are up to the
// subscribers.
//
// At the end nothing waits for the user's code. An observer, a Key or an Unmarshaler that hangs keeps only a goroutine:
// Close returns, the channel is closed, and what that code returns later does not reach a handler.
package inbound
