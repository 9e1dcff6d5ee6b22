package drive

import (
	"context"
	"errors"
	"fmt"
)

// explainPool says so where a statement may have run out of time because all connections of the pool were in use.
func explainPool(err error, inUse, most int) error {
	if !errors.Is(err, context.DeadlineExceeded) || most == 0 || inUse < most {
		return err
	}
	return fmt.Errorf("%w: all %d connections of the pool are in use; a forwarder needs one, preferably three, "+
		"besides those that handlers use, and one more with database/sql: raise the size of the pool", err, most)
}
