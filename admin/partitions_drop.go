package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/partitions"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// removeOld empties the partitions in which everything is settled and old, each under a lock of its own, and drops the
// empty ones together, which needs a lock on the outbox.
func (m *maintenance) removeOld(ctx context.Context) (err error) {
	var empty []partitions.Partition
	for i, p := range m.set.Behind() {
		if ctx.Err() != nil {
			return err
		}
		if i == len(m.set.Partitions)-1 && len(m.out.Made) == 0 { // new partitions copy its size and options
			m.keep(p, "the newest partition")
			continue
		}
		is, failed := m.empty(ctx, p)
		if failed != nil {
			m.keep(p, text.OfError(failed))
			err = errors.Join(err, fmt.Errorf("empty partition %s: %w", p.SQL, failed))
		} else if is {
			empty = append(empty, p)
		}
	}
	if len(empty) == 0 {
		return err
	}
	return errors.Join(err, m.drop(ctx, empty))
}

// empty empties a partition if all its messages are settled and old, and reports whether it is empty.
func (m *maintenance) empty(ctx context.Context, p partitions.Partition) (bool, error) {
	settled, why, err := m.settled(ctx, p)
	if text.SQLState(err) == lockNotAvailable {
		why, err = inUse, nil
	}
	if err == nil && why == "" && !m.cfg.DryRun {
		var had bool
		had, err = m.locked(ctx, func(q drive.Querier) error { return m.emptyLocked(ctx, q, p, &settled, &why) })
		if err == nil && !had {
			why = inUse
		}
	}
	switch {
	case text.SQLState(err) == text.UndefinedTable: // another run dropped it
		return false, nil
	case err != nil:
		return false, err
	case why != "":
		m.keep(p, why)
		return false, nil
	}
	m.out.Removed += settled
	return true, nil
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
		if why, err = m.holds(ctx, q, p); err != nil || why != "" {
			return err
		}
		isYoung := false
		err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&n, &isYoung) },
			sqltext.OfPartition(sqltext.PartitionSettled, p.SQL), stamp(m.before))
		if isYoung {
			why = young
		}
		return err
	})
	return n, why, err
}

// holds returns why a partition may not be emptied, as far as indexes and its last rows show; "" = nothing.
func (m *maintenance) holds(ctx context.Context, q drive.Querier, p partitions.Partition) (why string, err error) {
	var s Partition
	err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&s.Pending.N, &s.Dead.N) },
		sqltext.OfPartition(sqltext.PartitionHolds, p.SQL))
	s.Pending.More, s.Dead.More = s.Pending.N >= mostHeld, s.Dead.N >= mostHeld
	if why = s.HeldBy(); err != nil || why != "" {
		return why, err
	}
	isYoung := false
	err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&isYoung) },
		sqltext.OfPartition(sqltext.PartitionTail, p.SQL), stamp(m.before))
	if isYoung {
		why = young
	}
	return why, err
}

// emptyLocked empties a partition unless it has pending, dead or young messages by now, or is no longer the partition
// that was read.
func (m *maintenance) emptyLocked(ctx context.Context, q drive.Querier, p partitions.Partition, settled *int64,
	why *string,
) error {
	if _, err := q.Exec(ctx, sqltext.OfPartition(sqltext.PartitionReserve, p.SQL)); err != nil {
		return err
	}
	lock := sqltext.PartitionBriefly + "; " + sqltext.OfPartition(sqltext.PartitionLock, p.SQL)
	if _, err := q.Exec(ctx, lock); err != nil {
		return err
	}
	now, err := partitions.Read(ctx, q, m.db.Tables())
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(now.Behind(), p.Is) {
		*why = "no longer this partition of the outbox"
		return nil
	}
	if *why, err = m.holds(ctx, q, p); err != nil || *why != "" {
		return err
	}
	bytes, err := bytesOf(ctx, q, p)
	if err != nil || bytes == 0 { // another run may have emptied it
		*settled = 0
		return err
	}
	if _, err = q.Exec(ctx, sqltext.OfPartition(sqltext.PartitionTruncate, p.SQL)); err != nil {
		return err
	}
	_, err = q.Exec(ctx, m.db.Render(sqltext.CountClean), m.out.AuditID, *settled)
	return err
}

// bytesOf returns the bytes of the rows of a partition, deleted ones too.
func bytesOf(ctx context.Context, q drive.Querier, p partitions.Partition) (bytes int64, err error) {
	err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&bytes) }, sqltext.PartitionBytes, p.SQL)
	return bytes, err
}

// drop drops empty partitions, all in one transaction.
func (m *maintenance) drop(ctx context.Context, empty []partitions.Partition) error {
	var kept, dropped []partitions.Partition
	had, why, err := m.cfg.DryRun, "", error(nil)
	if had {
		dropped = empty
	} else {
		had, err = m.locked(ctx, func(q drive.Querier) (err error) {
			dropped, kept, err = m.dropLocked(ctx, q, empty)
			return err
		})
		why = usedAgain
	}
	switch {
	case err != nil:
		dropped, kept, why = nil, empty, text.OfError(err)
		err = fmt.Errorf("drop partitions: %w", err)
	case !had:
		dropped, kept, why = nil, empty, emptyInUse
	}
	for _, p := range dropped {
		m.out.Dropped = append(m.out.Dropped, p.Name)
	}
	for _, p := range kept {
		m.keep(p, why)
	}
	return err
}

// dropLocked drops the empty partitions that nobody has written to or dropped meanwhile. It takes the locks in the
// order in which others take them: the outbox, the default partition, the partitions. It does not read the partitions,
// because all writers wait: an empty one without bytes has no messages.
func (m *maintenance) dropLocked(ctx context.Context, q drive.Querier, empty []partitions.Partition) (
	dropped, kept []partitions.Partition, err error,
) {
	if err = m.reserve(ctx, q); err != nil {
		return nil, nil, err
	}
	empty = slices.DeleteFunc(slices.Clone(empty), func(p partitions.Partition) bool {
		return !slices.ContainsFunc(m.set.Behind(), p.Is)
	})
	reserve, lock := []string{}, []string{sqltext.PartitionBriefly, m.db.Render(sqltext.PartitionLockOutbox)}
	if d := m.set.Default; d != nil {
		lock = append(lock, sqltext.OfPartition(sqltext.PartitionLock, d.SQL))
	}
	for _, p := range empty {
		reserve = append(reserve, sqltext.OfPartition(sqltext.PartitionReserve, p.SQL))
		lock = append(lock, sqltext.OfPartition(sqltext.PartitionLock, p.SQL))
	}
	for _, statements := range [][]string{reserve, lock} {
		if _, err = q.Exec(ctx, strings.Join(statements, "; ")); err != nil {
			return nil, nil, err
		}
	}
	for _, p := range empty {
		bytes, err := bytesOf(ctx, q, p)
		if err != nil {
			return nil, nil, err
		}
		if bytes > 0 {
			kept = append(kept, p)
			continue
		}
		if _, err = q.Exec(ctx, sqltext.OfPartition(sqltext.PartitionDrop, p.SQL)); err != nil {
			return nil, nil, err
		}
		dropped = append(dropped, p)
	}
	return dropped, kept, nil
}
