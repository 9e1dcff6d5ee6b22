package drive

import (
	"context"
	"net"
	"time"
)

// closeOverdue closes the connection of a transaction that goes on for RollbackTimeout after the end of ctx, because a
// handler ignores its context: the server would keep the locks until the handler returns. database/sql rolls back when
// the context ends. The returned function ends the watch, and reports whether the connection was closed.
func closeOverdue(ctx context.Context, conn net.Conn) (stop func() (closed bool)) {
	over, closed := make(chan struct{}), make(chan bool, 1)
	unwatch := context.AfterFunc(ctx, func() {
		grace := time.NewTimer(RollbackTimeout)
		defer grace.Stop()
		select {
		case <-over:
			closed <- false
		case <-grace.C:
			_ = conn.Close()
			closed <- true
		}
	})
	return func() bool {
		if unwatch() {
			return false
		}
		close(over)
		return <-closed
	}
}
