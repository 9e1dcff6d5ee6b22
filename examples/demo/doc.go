// Package demo runs a service through a bad day and counts the results.
//
// Orders arrive at the broker, some of them twice. The service books each one and emits
// an event; a forwarder beside it and another one in a process of its own publish the events. While all are busy,
// the broker is taken away and brought back, and the other process is killed and replaced. When everything has
// settled, the demo stops the service and counts: what is in the database, in plain SQL, and what is on the broker,
// read from the first message to the last by a client that shares no code with the library. It ends with status 1
// if the numbers do not add up.
package demo
