// Package fleet keeps handles on many databases that are added and removed at run time: one database per tenant, or one
// schema, or both. Where they are is said by a Discovery, which is asked again and again. A forwarder.Group drains the
// outboxes of a fleet, and writers get the handle of a tenant by its key.
//
// # Words
//
//   - A target is what a Discovery returns: a key, a DSN, and the names of the tables there.
//   - A handle is an *outbox.DB on a target. Its name, in every log line and in what observers are told, is the key.
//   - A pool is a pgxpool.Pool. Targets with one DSN share one.
//   - A place is the right to have a connection open. The budget has Config.MaxConns of them, for all pools together.
//
// # Handles (handle.go, discovery.go)
//
// A target that a discovery returns again, unchanged, keeps its handle. One that is gone, or has another DSN or other
// tables now, is gone for Get and Acquire at once; its handle is closed after its last use. Get is for the use of the
// moment: a transaction that it began may end. Acquire is for work that goes on: the handle stays open until it is
// released, and Done says when to stop. A target that is gone and returns while its handle is still in use has the same
// handle again.
//
// A discovery that fails or hangs changes nothing, and neither does a target with a fault in it, which is logged. One
// that returns no target at all is believed only when it goes on. Whether a database can be reached is not looked at
// here.
//
// # Connections (pool.go, budget.go, seat.go)
//
// No pool has connections that it does not use: none is opened in advance, and idle ones are closed after half a
// minute. A connection has a place from before it is dialled until its socket is closed, so that what is counted is
// what the servers see. Without a free place a caller waits, first come, first served, and connections make room: the
// one that is idle for the longest, of whichever pool, is closed, and those that are given back to their pools are
// closed instead as long as a caller waits. They are left alone for the first moments of their lives, or nothing but
// connecting would be done.
//
// The budget cannot deadlock, but callers that have a connection and wait for another one, as a transaction in a
// transaction of another database does, can wait for each other. So no caller waits for a place for longer than half of
// the connect timeout (connect_timeout of the DSN, 10 s by default), and the error says what has the places.
//
// A database that does not answer keeps a place for each attempt to connect to it. From the first failure on, all such
// attempts share an eighth of the places, until one succeeds.
//
// # Secrets
//
// DSNs hold passwords. They are never logged, and are in no error.
package fleet
