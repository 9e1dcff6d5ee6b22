// Package idempotency carries out each HTTP request once: a request that a client repeats under the same
// Idempotency-Key gets the first response again, byte for byte, and its handler is not called.
//
//	once, err := idempotency.New(db, idempotency.Config{Tenant: tenantOf}, logger)
//	...
//	mux.Handle("POST /orders", authenticate(once(http.HandlerFunc(order))))
//
// The handler finds its transaction in the request's context: outbox.PgxTx, SQLTx, InTx and PublishContext of an
// outbox.Publisher. A request without a key also runs in a transaction, each time.
//
// # Promises
//
// The handler's writes, its messages and the stored response are one transaction, and the client gets the response
// after COMMIT. After a crash nothing is left, and a repeated request is carried out.
//
// A request is identified by tenant, method, route and key. Repeated with another path, query, content type or body, it
// gets a 422. Repeated while the first is in progress, it waits up to Config.Wait, then gets a 409 with Retry-After.
//
// Responses below 400 are committed and stored. From 400 on the writes are rolled back; the response is stored, except
// for 401, 403, 408, 409, 425, 429 and 5xx. If the outcome of COMMIT is unknown or the database cannot be reached, the
// client gets a 503; in the first case a 500 if it sent no key, because a repeat could be carried out again.
//
// Headers about the moment or the connection are not stored (Set-Cookie, Date, hop-by-hop, CORS, traces), nor are
// credentials such as X-Auth-Token; name others in Config.DropHeaders. Streams, hijacked connections and responses over
// Config.MaxResponse are refused.
//
// # Order of middlewares
//
// Put recovery, logging, CORS, authentication, authorization and compression outside. An authorization check inside
// would be skipped by a replay. Middlewares outside must not read the body: the request would get a 500.
//
// docs/guides/http.md lists all responses.
package idempotency
