// Package idempotency carries out each HTTP request once: a request that a client repeats under the same
// Idempotency-Key gets the answer of the first again, byte by byte, and its handler is not called. What the handler
// wrote, the messages that it published and the answer are one transaction.
//
//	once, err := idempotency.New(db, idempotency.Config{Tenant: tenantOf}, logger)
//	...
//	mux.Handle("POST /orders", authenticate(once(http.HandlerFunc(order))))
//
// The handler finds its transaction in the request's context, as a message handler does in that of its message:
// outbox.PgxTx, SQLTx, InTx, and PublishContext of an outbox.Publisher. A request without a key is carried out in a
// transaction as well, each time.
//
// # The way of a request
//
//	read       method, key, tenant, the whole body; 400, 401, 413, before anything is asked of the database
//	gate       one request of an identity at a time in this process; others wait in memory, up to Config.Wait
//	BEGIN      with the claim, in one round trip with pgx
//	claim      ours: go on.  Another's, in progress: wait, up to Config.Wait.  Done: compare, give the answer again
//	handler    writes with the transaction of its context; its answer is kept in memory
//	store      the answer, into the row of the claim
//	COMMIT     with the messages, in one round trip with pgx
//	answer     only now is anything sent to the client
//
// # Identity
//
// A request is known by tenant, method, route and key, never by the key alone: clients choose keys, and one must not
// get what another was answered. The route is the path unless Config.Route says otherwise. What must be the same in a
// repetition is its fingerprint: path, query, content type and body. It is compared before an answer is given again;
// another one is 422.
//
// # The states of a row
//
//	         claim                   COMMIT
//	(none) ---------> in progress ------------> done, with the answer ----> expired: (none) again, deleted later
//	   ^                   |
//	   +-------------------+
//	     ROLLBACK, a crash
//
// In progress is a row that is not committed: it is invisible, but its unique key makes the next claim wait for the
// transaction. So a crash needs no repair. The transaction is rolled back by the server, nothing is left, and the
// repetition carries the request out.
//
// A request that waits is told 409 with Retry-After when Config.Wait is over. If the first request succeeds meanwhile,
// its answer is given; if not, the one that waited carries the request out.
//
// A row that is committed without an answer is dead: its handler ended the transaction by itself (COMMIT as plain
// SQL, or Commit of its *sql.Tx). What it did is done, and the answer lost. The client and all its repetitions get
// 500, until the row expires or an operator deletes it: to carry the request out again might do its work twice.
//
// # Answers
//
//   - Below 400: committed and stored.
//   - 400 and above: what the handler wrote is rolled back, as a failed handler leaves nothing behind, and the answer
//     is stored by a transaction of its own. Write with outbox.OutsideTx what shall stay. The same after
//     outbox.SetRollbackOnly.
//   - 401, 403, 408, 409, 425, 429 and from 500 on: rolled back and not stored. They say that it may be different next
//     time.
//   - An error of a HandlerFunc: rolled back, not stored, 500 unless the handler has answered with 400 or above; 503
//     if it is of Postgres and may pass, or came after Config.Timeout. A panic: rolled back, not stored, passed on.
//
// If the connection breaks during COMMIT the outcome is unknown. The client gets 503 with Retry-After, and its
// repetition finds the truth: the answer, or nothing. The database cannot be reached: 503 as well, and the handler is
// not called. Serialization failures and deadlocks are repeated with a new transaction, a new copy of the request and a
// new answer, as far as the package sees them: at COMMIT, in its own statements, and returned by a HandlerFunc.
//
// A client that goes away cancels nothing that has begun: the handler's context has no cancellation, but the deadline
// of the request's, and Config.Timeout. Its repetition gets the answer.
//
// # What is not stored of an answer
//
// What is about the moment or the connection, and not about the outcome: Set-Cookie, Date, hop-by-hop headers, those
// of CORS (Access-Control-*), and those of traces and requests (Traceparent, X-Request-Id and the like); and what
// middlewares outside of this one had set before. The middlewares outside set their own for each repetition. A
// repetition has Idempotent-Replayed: true.
//
// Streams are refused: an answer that is sent before COMMIT cannot be taken back. The http.ResponseWriter of the
// handler has no Flush; an http.ResponseController gets an error that says why, as does Hijack. Trailers and
// informational answers (1xx) are not sent. An answer larger than Config.MaxAnswer is refused before COMMIT, with 500,
// and nothing is stored.
//
// # Order, and other middlewares
//
// From the outside in:
//
//	recover, log, trace, CORS
//	  authenticate and authorize     before each replay: a stored answer is for clients that may still ask for it
//	    compress                     a stored answer is replayed to clients that take other encodings
//	      this one
//	        handler
//
// Nothing outside may read the body, such as by ParseForm: the request is refused with 500 then, because its
// fingerprint would say nothing. A check of authorization inside would be skipped by a replay.
package idempotency
