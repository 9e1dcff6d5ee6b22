package schema

import (
	"context"
	"errors"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/leaves"
)

// Cure: or run outboxctl migrate partition.
var errOneTable = errors.New("the outbox is one table: MigrateConfig.PartitionSize only counts where it is made: " +
	"call Partition, or set it to 0")

// partitioned returns errOneTable if the outbox was made, and not in partitions as it should be.
func (r *run) partitioned(ctx context.Context, q drive.Querier, done history) error {
	if r.cfg.PartitionSize == 0 || !done.has(1) {
		return nil
	}
	set, err := leaves.Read(ctx, q, r.names)
	if err != nil {
		return err
	}
	if !set.Partitioned {
		return errOneTable
	}
	return nil
}

const lockNotAvailable = "55P03"
