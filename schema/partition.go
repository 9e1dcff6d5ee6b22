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
// the table becomes the first partition, which also takes what is written next, up to two sizes above the last id.
// Privileges, policies, triggers and indexes go with the name of the outbox. If it is in partitions it does nothing.
//
// It first adds a check that no id reaches the end of the first partition, and validates it, which reads the table once
// and blocks no writer. Then it swaps the tables in one short transaction. It waits for no lock that others would queue
// up behind: it retries until ctx is over. If ids come closer to the check than PartitionSize it takes the check away
// and begins again with one that is farther, and if it ends by ctx or an error it takes it away for good. For that
// alone it waits for a lock, up to 50 ms each time, and for up to a minute after ctx is over. A process that is killed
// leaves the check: the outbox works until ids reach it, and the next Partition uses or replaces it.
//
// The transaction that swaps runs no statement for more than 10 seconds. One that is cancelled, by that or by an
// operator, is tried three times in all. The read of the table has no limit, and is not retried.
//
// Its role must own the table. It returns outbox.ErrNoDB, an error that names the field at fault, one that lists what
// cannot be carried over, such as views and foreign keys, or one of the database or the context.
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

// Unpartition makes an outbox in partitions one table, while writers and forwarders work. No row is copied: all rows
// must be in one partition, which becomes the table, and the others are dropped. What Partition carries over it carries
// back. If the outbox is one table it does nothing.
//
// It waits for no lock that others would queue up behind: it retries until ctx is over. A statement that is cancelled
// under the lock, after 10 seconds or by an operator, is tried three times. Killed at any moment it has done all or
// nothing. Its role must own the table. It returns outbox.ErrNoDB, an error that lists the partitions if
// more than one has rows, one that lists what cannot be carried over, or one of the database or the context.
func Unpartition(ctx context.Context, db *outbox.DB) error {
	if err := (*core.DB)(db).Check(); err != nil {
		return err
	}
	p := newPartitioning((*core.DB)(db))
	return p.explain(ctx, "unpartition", p.back(ctx))
}
