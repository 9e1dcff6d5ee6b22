package drive

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// closeOverdue closes the connection of a transaction that is still open RollbackTimeout after the end of ctx, because
// its handler ignores the context: the server would keep the locks until the handler returns. database/sql rolls back
// without waiting for it. The returned function ends the watch, and returns an error if the connection was closed.
func closeOverdue(ctx context.Context, conn net.Conn) (overdue func() error) {
	over, closed := make(chan struct{}), make(chan error, 1)
	unwatch := context.AfterFunc(ctx, func() {
		grace := time.NewTimer(RollbackTimeout)
		defer grace.Stop()
		select {
		case <-over:
			closed <- nil
		case <-grace.C:
			_ = conn.Close()
			closed <- fmt.Errorf("rolled back by closing the connection, because the function had not returned "+
				"%s after the end of its context: %w", RollbackTimeout, ctx.Err())
		}
	})
	return sync.OnceValue(func() error {
		if unwatch() {
			return nil
		}
		close(over)
		return <-closed
	})
}
