// Package fleet keeps handles on many databases that are added and removed at run time: one database per tenant, or one
// schema, or both.
//
//	tenants, err := fleet.New(discovery, fleet.Config{MaxConns: 20}, logger)
//	go tenants.Run(ctx)
//	<-tenants.Running()
//	db, err := tenants.Get("acme") // for outbox.InTx, publishers and so on
//
// A Discovery lists the targets and is polled. A target is a key, a DSN and the names of its tables. A forwarder.Group
// drains the outboxes of a fleet.
//
// # Promises
//
// An unchanged target keeps its handle. A target that is gone, or has another DSN or other tables, is immediately gone
// for Get and Acquire, and its handle is closed after its last use. Get is for short use. Acquire keeps the handle open
// until it is released; Done reports when to stop.
//
// A discovery that fails or hangs changes nothing, and neither does a faulty target, which is logged. An empty result
// counts only when it is repeated.
//
// Targets with one DSN share a pool. All pools together open at most Config.MaxConns connections, none of them in
// advance; idle connections are closed after half a minute. A caller waits for a free connection at most half of the
// connect timeout (connect_timeout of the DSN, 10 s by default); the error lists the holders. A transaction opened
// inside a transaction of another database can run into this limit. Unresponsive databases share an eighth of the
// connections.
//
// DSNs hold passwords: they never appear in logs or errors.
package fleet
