package schema

import (
	"context"
	"errors"
	"fmt"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// PartitionConfig configures Partition.
type PartitionConfig struct {
	// PartitionSize is the number of ids of a partition, as in MigrateConfig. Required.
	PartitionSize int64
}

// roomBelow is how many times the size of a partition the first one reaches above the ids that are used: as long as it
// is not validated and swapped, the check of its end would refuse what lies above.
const roomBelow = 2

// Cause: objects depend on the table itself, or cannot be partitioned.
var errObstacles = errors.New("cannot be carried over: drop it, and create it again afterwards")

// Cause: Unpartition needs the rows in one partition.
var errManyLeaves = errors.New("rows are in more than one partition: empty all but one with outboxctl roll and a " +
	"short retention, after requeueing or discarding the dead messages in them")

// Partition splits an outbox that is one table into partitions, while writers and forwarders work. No row is copied:
// the table becomes the first partition, which also takes the ids of the next two sizes. Privileges, policies, triggers
// and indexes go with the name of the outbox. It does nothing if the outbox is in partitions.
//
// It adds a check that no id reaches the end of the first partition, validates it, which reads the table once and
// blocks no writer, and swaps the tables in one short transaction. It retries until ctx is over instead of waiting for
// a lock that others would queue behind. If ids come closer to the check than PartitionSize, it begins again with a
// farther check. It removes the check if it fails; only for that does it wait for a lock, up to 50 ms each time, and
// for up to a minute after ctx is over. A killed process leaves the check: the outbox works until ids reach it, and the
// next Partition replaces it.
//
// A statement of the swap that is cancelled, after 10 seconds or by an operator, is tried three times. The role must
// own the table. Partition returns outbox.ErrNoDB, an error that names an invalid field, an error that lists objects
// that cannot be carried over, such as views and foreign keys, or an error of the database or the context.
func Partition(ctx context.Context, db *outbox.DB, cfg PartitionConfig) error {
	if err := (*core.DB)(db).Check(); err != nil {
		return err
	}
	if cfg.PartitionSize <= 0 || cfg.PartitionSize > mostIDs {
		return fmt.Errorf("PartitionConfig.PartitionSize is %d: use the number of ids in a partition, up to %d",
			cfg.PartitionSize, int64(mostIDs))
	}
	p := newPartitioning((*core.DB)(db))
	p.size, p.room = cfg.PartitionSize, roomBelow*cfg.PartitionSize
	return p.explain(ctx, "partition", p.convert(ctx))
}

// Unpartition makes a partitioned outbox one table, while writers and forwarders work. No row is copied: all rows must
// be in one partition, which becomes the table, and the others are dropped. It does nothing if the outbox is one table.
//
// It retries until ctx is over instead of waiting for a lock that others would queue behind. A cancelled statement is
// tried three times. It does all or nothing, even if it is killed. The role must own the table. Unpartition returns
// outbox.ErrNoDB, an error that lists the partitions if more than one has rows, an error that lists objects that cannot
// be carried over, or an error of the database or the context.
func Unpartition(ctx context.Context, db *outbox.DB) error {
	if err := (*core.DB)(db).Check(); err != nil {
		return err
	}
	p := newPartitioning((*core.DB)(db))
	return p.explain(ctx, "unpartition", p.back(ctx))
}
