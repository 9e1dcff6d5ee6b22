// Package modeldb does in memory what the forwarder's statements do in PostgreSQL, to the digit: transaction ids and
// when they are taken, snapshots, row ids, row locks, leases and epochs, lives of the server, and a crash that loses
// the latest commits. TestModelIsPostgres holds it against a real server.
//
// It is single-threaded and draws nothing: what may come out in several ways is an argument. Time stands still unless
// DB.Now is set. A method is one statement, in a transaction of its own unless it is one of a Tx. A statement that
// would wait for a lock answers blocked, and has done nothing.
package modeldb
