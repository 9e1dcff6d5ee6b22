package admin

import "fmt"

// handlers checks the handlers that share the pool of a forwarder: each needs a connection for its transaction.
func (e *doctorRun) handlers(m member) {
	if f := m.says; f.PoolConns > 0 && f.Handlers > f.PoolConns {
		e.find("handler_pool", Info,
			fmt.Sprintf("up to %d handlers ran concurrently in the process of %s, whose pool has %s: "+
				"they wait for each other", f.Handlers, m, connections(f.PoolConns)),
			fmt.Sprintf("give the pool %s (pool_max_conns, SetMaxOpenConns), or lower the Concurrency of the subscribers",
				connections(f.Handlers+f.PoolNeeds)))
	}
}
