package core

import (
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
)

// handlers counts the handlers in progress on a handle. Each needs a connection for its transaction.
type handlers struct {
	now, most atomic.Int64
	told      atomic.Bool
}

// HandlerStarts counts a handler as in progress until the returned function is called.
func (db *DB) HandlerStarts(logger watermill.LoggerAdapter) (ended func()) {
	h := &db.handlers
	n := h.now.Add(1)
	for most := h.most.Load(); n > most; most = h.most.Load() {
		if h.most.CompareAndSwap(most, n) {
			db.warnSmallPool(n, logger)
			break
		}
	}
	return func() { h.now.Add(-1) }
}

// MostHandlers returns the highest number of handlers that were in progress concurrently.
func (db *DB) MostHandlers() int { return int(db.handlers.most.Load()) }

func (db *DB) warnSmallPool(handlers int64, logger watermill.LoggerAdapter) {
	size := int64(db.Conns().Max)
	if size == 0 || handlers <= size || db.handlers.told.Swap(true) {
		return
	}
	logger.Info("pool is too small for the handlers, which wait for connections: "+
		"raise its size (pool_max_conns, SetMaxOpenConns), or lower the Concurrency of the subscriber",
		watermill.LogFields{"handlers": handlers, "pool": size})
}
