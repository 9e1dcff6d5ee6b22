// Package modeldb models exactly in memory what the forwarder's statements do in PostgreSQL: transaction ids and when
// they are assigned, snapshots, row ids, row locks, leases and epochs, incarnations of the server, and a crash that
// loses the latest commits. TestModelIsPostgres compares it with a real server.
//
// It is single-threaded and uses no random numbers: if several outcomes are possible, the outcome is an argument. Time
// stands still unless DB.Now is set. A method is one statement, in its own transaction unless it is a method of Tx. A
// statement that would wait for a lock returns blocked and changes nothing.
package modeldb
