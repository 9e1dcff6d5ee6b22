// Package demo runs a service through a bad day and counts the results.
//
// Orders arrive at the broker, some of them twice. The service books each one and emits an event. A forwarder in the
// service and another one in its own process publish the events. While all are busy, the broker is stopped and
// restarted, and the other process is killed and replaced. When everything has settled, the demo stops the service and
// counts the rows in the database, in plain SQL, and the messages on the broker, read from the first to the last by a
// client that shares no code with the library. It exits with status 1 if the numbers do not add up.
package demo
