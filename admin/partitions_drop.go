package admin

import (
	"context"
	"slices"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/partitions"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// drop drops a partition if all in it is settled and old.
func (m *maintenance) drop(ctx context.Context, p partitions.Partition) error {
	settled, why, err := m.settled(ctx, p)
	if text.SQLState(err) == lockNotAvailable {
		why, err = inUse, nil
	}
	if err == nil && why == "" && !m.cfg.DryRun {
		var had bool
		had, err = m.locked(ctx, func(q drive.Querier) error { return m.dropLocked(ctx, q, p, &why) })
		if err == nil && !had {
			why = inUse
		}
	}
	switch {
	case text.SQLState(err) == text.UndefinedTable: // another run dropped it
		return nil
	case err != nil:
		return err
	case why != "":
		m.keep(p, why)
		return nil
	}
	m.out.Dropped = append(m.out.Dropped, p.Name)
	if m.out.Removed += settled; !m.cfg.DryRun {
		return m.exec(context.WithoutCancel(ctx), sqltext.CountClean, m.out.AuditID, settled)
	}
	return nil
}

// settled counts the messages of a partition, or returns why it stays.
func (m *maintenance) settled(ctx context.Context, p partitions.Partition) (n int64, why string, err error) {
	if p.Locked {
		return 0, inUse, nil
	}
	err = m.db.Transact(ctx, func(q drive.Querier) error {
		for _, s := range []string{sqltext.NoTimeout, sqltext.PartitionPatience} {
			if err := drive.Collect(ctx, q, func(drive.Rows) error { return nil }, s); err != nil {
				return err
			}
		}
		if why, err = m.held(ctx, q, p); err != nil || why != "" {
			return err
		}
		isYoung, err := m.tailIsYoung(ctx, q, p)
		if err == nil && !isYoung {
			err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&n, &isYoung) },
				sqltext.OfPartition(sqltext.PartitionSettled, p.SQL), stamp(m.before))
		}
		if isYoung {
			why = young
		}
		return err
	})
	return n, why, err
}

// tailIsYoung reports whether one of the last messages of a partition is younger than the retention.
func (m *maintenance) tailIsYoung(ctx context.Context, q drive.Querier, p partitions.Partition) (is bool, err error) {
	err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&is) },
		sqltext.OfPartition(sqltext.PartitionTail, p.SQL), stamp(m.before))
	return is, err
}

// held returns which messages keep a partition; "" = none.
func (m *maintenance) held(ctx context.Context, q drive.Querier, p partitions.Partition) (why string, err error) {
	var s Partition
	err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&s.Pending.N, &s.Dead.N) },
		sqltext.OfPartition(sqltext.PartitionHolds, p.SQL))
	s.Pending.More, s.Dead.More = s.Pending.N >= mostHeld, s.Dead.N >= mostHeld
	return s.HeldBy(), err
}

// dropLocked drops a partition unless it has pending, dead or young messages by now, or is no longer the partition that
// was looked at. The locks are taken in the order in which others take them: the outbox, the default partition, the
// partition.
func (m *maintenance) dropLocked(ctx context.Context, q drive.Querier, p partitions.Partition, why *string) error {
	locks := []string{m.db.Render(sqltext.PartitionLockDrop)}
	if d := m.set.Default; d != nil {
		locks = append(locks, sqltext.OfPartition(sqltext.PartitionLock, d.SQL))
	}
	locks = append(locks, sqltext.OfPartition(sqltext.PartitionLock, p.SQL))
	if _, err := q.Exec(ctx, strings.Join(locks, "; ")); err != nil {
		return err
	}
	now, err := partitions.Read(ctx, q, m.db.Tables())
	if err != nil {
		return err
	}
	same := func(o partitions.Partition) bool { return o.SQL == p.SQL && o.Range == p.Range }
	if !slices.ContainsFunc(now.Behind(), same) {
		*why = "no longer this partition of the outbox"
		return nil
	}
	if *why, err = m.held(ctx, q, p); err != nil || *why != "" {
		return err
	}
	switch isYoung, err := m.tailIsYoung(ctx, q, p); {
	case err != nil:
		return err
	case isYoung:
		*why = young
		return nil
	}
	_, err = q.Exec(ctx, sqltext.OfPartition(sqltext.PartitionDrop, p.SQL))
	return err
}
