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
	all := fmt.Sprintf("all %d connections of the pool are in use", most)
	if most == 1 {
		all = "the only connection of the pool is in use"
	}
	return fmt.Errorf("%w: %s; a forwarder needs one, preferably three, besides those that handlers use, and one more "+
		"with database/sql: raise the size of the pool", err, all)
}
