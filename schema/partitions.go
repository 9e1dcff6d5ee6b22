package schema

import (
	"context"
	"errors"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/partitions"
)

// Cause: MigrateConfig.PartitionSize is set, and the tables already exist.
var errOneTable = errors.New("the outbox is one table: MigrateConfig.PartitionSize only applies when it is created: " +
	"set it to 0, or use new table names, as docs/run/partitions.md shows")

// partitioned returns errOneTable if the outbox exists but is not partitioned as configured.
func (r *run) partitioned(ctx context.Context, q drive.Querier, done history) error {
	if r.cfg.PartitionSize == 0 || !done.has(1) {
		return nil
	}
	set, err := partitions.Read(ctx, q, r.names)
	if err != nil {
		return err
	}
	if !set.Partitioned {
		return errOneTable
	}
	return nil
}

const lockNotAvailable = "55P03"
