// Package inbound is what the subscribers that read a broker by key share: one subscription a topic (Topics), the
// channel to the Router (Outlet), the user's code that makes a message of a record (Codec), and what observers are told
// (Reports). Which message may be handed out is package keyed's business; what a broker is told of it is theirs.
//
// None of it waits for the user's code at the end. An observer, a Key or an Unmarshaler that hangs keeps a goroutine,
// and nothing else: Close returns, the channel is closed, and what that code returns later reaches no handler.
package inbound
