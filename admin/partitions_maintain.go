package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/partitions"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// PartitionsConfig configures MaintainPartitions.
type PartitionsConfig struct {
	// Retention is how long done messages are kept; default 0, which drops no partition. Keep it shorter than
	// forwarder.Config.Retention, or forwarders delete the rows one by one.
	Retention time.Duration
	// At is the time from which Retention is counted back; default now.
	At time.Time
	// PartitionSize is the number of ids of new partitions; default the size of the newest one.
	PartitionSize int64
	// Reason and Actor are stored in the audit log.
	Reason, Actor string
	// DryRun returns what would be done, and does nothing; default off.
	DryRun bool
}

// PartitionsResult is the result of MaintainPartitions.
type PartitionsResult struct {
	At time.Time `json:"at"` // when the retention was counted back from
	// Made and Dropped are names of partitions.
	Made    []string `json:"made"`
	Dropped []string `json:"dropped"`
	// Kept are the partitions behind the last id that stay.
	Kept []KeptPartition `json:"kept"`
	// Ahead is how many partitions are wholly above the last id at the end; 0 after an error.
	Ahead int `json:"ahead"`
	// NotMade is why partitions that were needed were not made; "" = none is missing.
	NotMade string `json:"not_made,omitempty"`
	// Removed is the number of messages in the dropped partitions.
	Removed int64 `json:"removed"`
	// AuditID is the entry in the audit log; 0 for a dry run.
	AuditID int64 `json:"audit_id,omitempty"`
}

// KeptPartition is a partition that was not dropped.
type KeptPartition struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

const (
	partitionsAction = "partitions" // in the audit log

	lockTries = 20
	lockPause = 400 * time.Millisecond // others have the table for four times as long as one waits for it

	inUse = "in use: the next run tries again"
	young = "messages are younger than the retention"

	mostIDs = 1 << 50 // beyond any size of a partition

	lockNotAvailable = "55P03"
	deadlockDetected = "40P01"
	duplicateTable   = "42P07"
	duplicateObject  = "42710" // a domain, since each table is a type too
)

// ErrNotPartitioned is returned by MaintainPartitions for an outbox that is one table.
//
// Cure: forwarders delete old rows.
var ErrNotPartitioned = errors.New("admin: the outbox is not partitioned: use Clean")

// MaintainPartitions maintains an outbox in partitions. It makes partitions until eight are ahead of the last id. It
// drops each partition behind the last id in which every message was published or discarded longer ago than the
// retention. Partitions with pending or dead messages stay, and the result says what holds them. Whether messages are
// pending or dead is checked while the partition is locked, so none is lost.
//
// It waits for a lock for at most 100 ms at a time, and tries for about ten seconds. Partitions in use are left for the
// next run. Run it every hour, as the owner of the table. Concurrent and killed runs do no harm.
//
// It returns its result also with an error: ErrNotPartitioned, ErrNoActor, an error that names an invalid field or the
// owner of the table, or an error of the database or the context.
func (a *Admin) MaintainPartitions(ctx context.Context, cfg PartitionsConfig) (_ PartitionsResult, err error) {
	m := &maintenance{Admin: a, cfg: cfg, tries: lockTries, out: PartitionsResult{Made: []string{}, Dropped: []string{},
		Kept: []KeptPartition{}}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("maintain partitions: %w", err)
		}
	}()
	if err = m.check(ctx); err != nil {
		return m.out, err
	}
	refused := m.refusal()
	if !cfg.DryRun {
		act := Act{Actor: m.cfg.Actor, Reason: cfg.Reason, Filter: Filter{In: Outbox, States: []State{Done, Discarded}}}
		if cfg.Retention > 0 {
			act.Filter.Before = m.before
		}
		if m.out.AuditID, err = a.begin(ctx, partitionsAction, act); err != nil {
			return m.out, cmp.Or(refused, err)
		}
	}
	if err = refused; err == nil {
		err = m.run(ctx)
	}
	if cfg.DryRun {
		return m.out, err
	}
	a.logger.Info("outbox partitions maintained", watermill.LogFields{
		"actor": m.cfg.Actor, "made": len(m.out.Made), "dropped": len(m.out.Dropped), "kept": len(m.out.Kept),
		"removed": m.out.Removed, "audit_id": m.out.AuditID,
	})
	return m.out, a.end(ctx, m.out.AuditID, err)
}

// maintenance is one call of MaintainPartitions.
type maintenance struct {
	*Admin
	cfg    PartitionsConfig
	before time.Time // rows settled before then are old
	set    partitions.Set
	tries  int // for locks
	out    PartitionsResult
}

// check refuses an invalid configuration, and an outbox that is one table.
func (m *maintenance) check(ctx context.Context) error {
	switch {
	case m.cfg.Retention < 0:
		return invalid("admin: PartitionsConfig.Retention is %s: use how long to keep, or 0 to drop no partition",
			m.cfg.Retention)
	case m.cfg.PartitionSize < 0 || m.cfg.PartitionSize > mostIDs:
		return invalid("admin: PartitionsConfig.PartitionSize is %d: use a number of ids up to %d, or 0 for the size of the "+
			"newest partition", m.cfg.PartitionSize, int64(mostIDs))
	}
	now, err := m.now(ctx)
	switch {
	case err != nil:
		return err
	case m.cfg.At.IsZero():
		m.cfg.At = now
	case m.cfg.At.After(now):
		return invalid("admin: PartitionsConfig.At is %s, and by the database's clock it is %s: a future time would drop "+
			"messages that must be kept", stamp(m.cfg.At), stamp(now))
	}
	m.out.At, m.before = m.cfg.At, m.cfg.At.Add(-m.cfg.Retention)
	if m.cfg.Actor, err = m.actor(m.cfg.Actor, m.cfg.Reason); err != nil {
		return err
	}
	if m.set, err = m.partitionSet(ctx); err == nil && !m.set.Partitioned {
		err = ErrNotPartitioned
	}
	return err
}

// refusal is why the role may not maintain the partitions; nil = it may.
func (m *maintenance) refusal() error {
	switch {
	case !m.set.Owns && !m.cfg.DryRun:
		return fmt.Errorf("role %s does not own table %s: run it as %s, or GRANT %[3]s TO %[1]s", m.set.Role,
			m.db.Render("{outbox}"), m.set.Owner)
	case !m.set.Known:
		return fmt.Errorf("role %s may not read the last id: GRANT SELECT ON SEQUENCE %s TO %[1]s", m.set.Role,
			m.db.Render("{outbox_id_seq}"))
	}
	return nil
}

func (m *maintenance) run(ctx context.Context) (err error) {
	err = m.makeAhead(ctx)
	if m.cfg.Retention > 0 {
		for i, p := range m.set.Behind() {
			if ctx.Err() != nil {
				break
			}
			if i == len(m.set.Partitions)-1 && len(m.out.Made) == 0 { // it shows the size and options of those to come
				m.keep(p, "the newest partition")
				continue
			}
			if failed := m.drop(ctx, p); failed != nil {
				m.keep(p, text.OfError(failed))
				err = errors.Join(err, fmt.Errorf("drop partition %s: %w", p.SQL, failed))
			}
		}
	}
	if err = errors.Join(err, ctx.Err()); err == nil && !m.cfg.DryRun {
		m.set, err = m.partitionSet(ctx)
		m.out.Ahead = m.set.Ahead()
	}
	return err
}

func (m *maintenance) keep(p partitions.Partition, why string) {
	m.out.Kept = append(m.out.Kept, KeptPartition{Name: p.Name, Why: why})
}

// locked runs fn in a transaction that waits for locks briefly, again and again; false = in vain. Then later calls try
// once.
func (m *maintenance) locked(ctx context.Context, fn func(q drive.Querier) error) (bool, error) {
	for try := range m.tries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return false, ctx.Err()
			case <-time.After(lockPause):
			}
		}
		err := m.db.Transact(ctx, func(q drive.Querier) error {
			if err := drive.Collect(ctx, q, func(drive.Rows) error { return nil }, sqltext.PartitionTx); err != nil {
				return err
			}
			return fn(q)
		})
		if state := text.SQLState(err); state != lockNotAvailable && state != deadlockDetected {
			return err == nil, explain(err)
		}
	}
	m.tries = 1 // who uses the outbox for long keeps the others too
	return false, nil
}
