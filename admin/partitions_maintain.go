package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	// Reason is stored in the audit log.
	Reason string
	// DryRun returns what would be done, and does nothing; default off.
	DryRun bool
}

// PartitionsResult is the result of MaintainPartitions.
type PartitionsResult struct {
	At time.Time `json:"at"` // the time from which the retention is counted back
	// Made and Dropped are names of partitions.
	Made    []string `json:"made"`
	Dropped []string `json:"dropped"`
	// Kept maps each partition behind the last id that stays to the reason.
	Kept map[string]string `json:"kept"`
	// Ahead is the number of partitions wholly above the last id at the end; 0 after an error.
	Ahead int `json:"ahead"`
	// NotMade is the reason why needed partitions were not made; "" = none is missing.
	NotMade string `json:"not_made,omitempty"`
	// Removed is the number of messages in the emptied partitions, including dropped ones.
	Removed int64 `json:"removed"`
	// AuditID is the entry in the audit log; 0 for a dry run.
	AuditID int64 `json:"audit_id,omitempty"`
}

const (
	partitionsAction = "partitions" // in the audit log

	lockPatience = 10 * time.Second
	// between tries others can use the table four times as long as one try waits for it
	lockPause = 400 * time.Millisecond

	inUse      = "in use: the next run tries again"
	foundInUse = "in use: " // begins the outcome in the audit log
	emptyInUse = "emptied, but the outbox is in use: the next run drops it"
	usedAgain  = "emptied, but written to again: the next run tries again"
	young      = "messages are younger than the retention"

	mostIDs = 1 << 50 // beyond any size of a partition

	lockNotAvailable = "55P03"
	deadlockDetected = "40P01"
	duplicateTable   = "42P07"
	duplicateObject  = "42710" // a domain, since each table is a type too
)

// Cause: forwarders delete old rows.
// Cure: use Clean.
var errNotPartitioned = errors.New("admin: the outbox is not partitioned: use Clean")

// MaintainPartitions makes and drops the partitions of a partitioned outbox. It makes partitions until eight are ahead
// of the last id. It empties each partition behind the last id in which every message was published or discarded longer
// ago than the retention, then drops the empty ones. Partitions with pending or dead messages stay, and the result
// names these messages. It looks for them while the partition is locked, so none is lost.
//
// Writers and readers wait for its locks for at most 100 ms at a time. It tries each step for about ten seconds: to
// make partitions, to empty one, to drop the empty ones. After a step that found no moment it tries the others once.
// Emptying waits for transactions that used the partition, dropping for all that wrote to the outbox. Partitions in use
// are left for the next run. Run it every hour, as the owner of the table. Concurrent and killed runs do no harm.
//
// It returns its result even with an error: that the outbox is not partitioned, ErrNoActor, an error that names an
// invalid field or the owner of the table, or an error of the database or the context.
func (a *Admin) MaintainPartitions(ctx context.Context, cfg PartitionsConfig) (_ PartitionsResult, err error) {
	m := &maintenance{Admin: a, cfg: cfg, patience: lockPatience,
		out: PartitionsResult{Made: []string{}, Dropped: []string{}, Kept: map[string]string{}}}
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
		act := Action{Reason: cfg.Reason, Filter: Filter{In: Outbox, States: []State{Done, Discarded}}}
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
		"actor": a.cfg.Actor, "made": len(m.out.Made), "dropped": len(m.out.Dropped), "kept": len(m.out.Kept),
		"removed": m.out.Removed, "audit_id": m.out.AuditID,
	})
	if used := m.used(); err == nil && len(used) > 0 {
		return m.out, a.exec(ctx, sqltext.EndAct, m.out.AuditID, foundInUse+strings.Join(used, ", "))
	}
	return m.out, a.end(ctx, m.out.AuditID, err)
}

// used names the partitions that the run found in use.
func (m *maintenance) used() (list []string) {
	if d := m.set.Default; d != nil && m.out.NotMade == inUse {
		list = append(list, d.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(m.out.Kept)) {
		if why := m.out.Kept[name]; why == inUse || why == emptyInUse {
			list = append(list, name)
		}
	}
	return list
}

// maintenance is one call of MaintainPartitions.
type maintenance struct {
	*Admin
	cfg    PartitionsConfig
	before time.Time // rows settled before then are old
	set    partitions.Set
	out    PartitionsResult

	patience time.Duration // for locks
}

// check refuses an invalid configuration, and an outbox that is not partitioned.
func (m *maintenance) check(ctx context.Context) error {
	switch {
	case m.cfg.Retention < 0:
		return invalid("admin: PartitionsConfig.Retention is %s: use a positive duration, or 0 to drop no partition",
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
		return invalid("admin: PartitionsConfig.At is %s, but the database's clock shows %s: a future time would drop "+
			"messages that must be kept", stamp(m.cfg.At), stamp(now))
	}
	m.out.At, m.before = m.cfg.At, m.cfg.At.Add(-m.cfg.Retention)
	if err := m.recordable(m.cfg.Reason); err != nil {
		return err
	}
	if m.set, err = m.partitionSet(ctx); err == nil && !m.set.Partitioned {
		err = errNotPartitioned
	}
	return err
}

// refusal returns an error if the role may not maintain the partitions.
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
		err = errors.Join(err, m.removeOld(ctx))
	}
	if err = errors.Join(err, ctx.Err()); err == nil && !m.cfg.DryRun {
		m.set, err = m.partitionSet(ctx)
		m.out.Ahead = m.set.Ahead()
		if above := m.set.Above(); m.out.Ahead == 0 && len(above) > 0 {
			m.out.NotMade = fmt.Sprintf("the next partition begins at id %d, far above the last id, %d", above[0].From,
				m.set.Last)
		}
	}
	return err
}

// reserve excludes other runs, VACUUM on the default partition, and changes of either, and reads the partitions. After
// an error the partitions read before remain.
func (m *maintenance) reserve(ctx context.Context, q drive.Querier) error {
	if _, err := q.Exec(ctx, m.db.Render(sqltext.PartitionReserveOutbox)); err != nil {
		return err
	}
	set, err := partitions.Read(ctx, q, m.db.Tables())
	if err == nil && set.Default != nil {
		_, err = q.Exec(ctx, sqltext.OfPartition(sqltext.PartitionReserve, set.Default.SQL))
	}
	if err == nil {
		m.set = set
	}
	return err
}

func (m *maintenance) keep(p partitions.Partition, why string) {
	m.out.Kept[p.Name] = why
}

// locked runs fn in a transaction that waits for locks only briefly, and retries it. It returns false if it gave up;
// then later calls try only once.
func (m *maintenance) locked(ctx context.Context, fn func(q drive.Querier) error) (bool, error) {
	for begun := time.Now(); ; {
		err := m.db.Transact(ctx, func(q drive.Querier) error {
			if err := drive.Collect(ctx, q, func(drive.Rows) error { return nil }, sqltext.PartitionTx); err != nil {
				return err
			}
			return fn(q)
		})
		if state := text.SQLState(err); state != lockNotAvailable && state != deadlockDetected {
			return err == nil, explain(err)
		}
		if time.Since(begun) > m.patience {
			m.patience = 0 // a long transaction on the outbox blocks later calls too
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(lockPause):
		}
	}
}
