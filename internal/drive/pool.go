package drive

import (
	"context"
	"errors"
	"fmt"
)

// explainPool adds to a timeout that all connections of the pool were in use, if they were.
func explainPool(err error, inUse, most int) error {
	if !errors.Is(err, context.DeadlineExceeded) || most == 0 || inUse < most {
		return err
	}
	return fmt.Errorf("%w: all %d connections of the pool are in use; a forwarder needs one, preferably three, "+
		"besides those that handlers use, and one more with database/sql: raise the size of the pool", err, most)
}
