package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
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
// Cure: none: forwarders delete old rows.
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

// makeAhead makes the partitions that are missing ahead of the last id, all in one transaction.
func (m *maintenance) makeAhead(ctx context.Context) error {
	size := cmp.Or(m.cfg.PartitionSize, m.set.Size())
	if all := m.set.Partitions; m.set.End() == math.MaxInt64 {
		m.out.NotMade = "partition " + all[len(all)-1].Name + " takes all ids from its first on: make one that ends"
		return nil
	}
	if size == 0 {
		m.out.NotMade = "no partition shows how many ids one has: set PartitionSize"
		return nil
	}
	if m.cfg.DryRun {
		m.out.Made = m.names(m.missing(size))
		return nil
	}
	var made []string
	taken := 0 // names that another program has
	for taken < 100 {
		had, err := m.locked(ctx, func(q drive.Querier) (err error) {
			made, err = m.makeLocked(ctx, q, size, taken)
			return err
		})
		switch state := text.SQLState(err); {
		case state == duplicateTable, state == duplicateObject:
			taken++
			continue
		case err != nil:
			return fmt.Errorf("make partitions: %w", err)
		case !had:
			m.out.NotMade = inUse
		default:
			m.out.Made = append(m.out.Made, made...)
		}
		return nil
	}
	return fmt.Errorf("make partitions: names like %s are taken by other relations", m.names(1)[0])
}

// missing is how many partitions are to be made.
func (m *maintenance) missing(size int64) int {
	if n := migrations.Ahead - m.set.Ahead(); n > 0 && size < (math.MaxInt64-m.above(size))/(migrations.Ahead+1) {
		return n
	}
	return 0
}

// above is where the next partition begins. A statement that began before the partition was made routes its rows to
// the default partition, which refuses them then: so there is at least a whole partition between the ids that are handed
// out now and the new one. If the partitions ahead ran out, the default partition takes those ids.
func (m *maintenance) above(size int64) int64 {
	if newest := m.set.Size(); newest > 0 {
		size = min(size, newest)
	}
	return max(m.set.End(), m.set.Last+size)
}

// names are those of the next n partitions: the outbox's with numbers.
func (m *maintenance) names(n int) (list []string) {
	prefix, next := m.db.Tables().Outbox+"_p", 0
	for _, p := range m.set.Partitions {
		if i, err := strconv.Atoi(strings.TrimPrefix(p.Name, prefix)); err == nil {
			next = max(next, i+1)
		}
	}
	for i := range n {
		list = append(list, prefix+strconv.Itoa(next+i))
	}
	return list
}

// makeLocked makes the missing partitions in a transaction.
func (m *maintenance) makeLocked(ctx context.Context, q drive.Querier, size int64, taken int) (made []string, err error) {
	if _, err = q.Exec(ctx, m.db.Render(sqltext.PartitionLockOutbox)); err != nil {
		return nil, err
	}
	if m.set, err = partitions.Read(ctx, q, m.db.Tables()); err != nil {
		return nil, err
	}
	n := m.missing(size)
	if n == 0 {
		return nil, nil
	}
	var revoke []string
	if err = drive.Collect(ctx, q, func(rows drive.Rows) error {
		var role string
		err := rows.Scan(&role)
		revoke = append(revoke, "REVOKE ALL ON TABLE {partition} FROM "+role)
		return err
	}, m.db.Render(sqltext.PartitionGranted)); err != nil {
		return nil, err
	}
	options := ""
	if all := m.set.Partitions; len(all) > 0 {
		options = all[len(all)-1].With()
	}
	made = m.names(n + taken)[taken:]
	script := func(statement, partition string, r partitions.Range) string {
		return strings.NewReplacer("{partition}", partition, "{owner}", m.set.Owner, "{options}", options,
			"{tablespace}", m.set.Tablespace, "{from}", strconv.FormatInt(r.From, 10), "{to}", strconv.FormatInt(r.To, 10)).
			Replace(m.db.Render(statement))
	}
	table := func(name string) string { return m.set.Schema + "." + sqltext.Quote(name) }
	for _, name := range made {
		statement := strings.Join(append([]string{sqltext.PartitionMake}, revoke...), ";\n")
		if _, err = q.Exec(ctx, script(statement, table(name), partitions.Range{})); err != nil {
			return nil, err
		}
	}
	all := partitions.Range{From: m.above(size)}
	all.To = all.From + int64(n)*size
	var attach []string
	if d := m.set.Default; d != nil {
		lock := sqltext.OfPartition(sqltext.PartitionLock, d.SQL)
		if _, err = q.Exec(ctx, lock); err != nil {
			return nil, err
		}
		if all.From, err = m.emptyFrom(ctx, q, all.From, int64(n)*size); err != nil {
			return nil, err
		}
		all.To = all.From + int64(n)*size
		attach = append(attach, script(sqltext.PartitionEmptyBetween, d.SQL, all))
	}
	for i, name := range made {
		from := all.From + int64(i)*size
		attach = append(attach, script(sqltext.PartitionAttach, table(name), partitions.Range{From: from, To: from + size}))
	}
	if d := m.set.Default; d != nil {
		attach = append(attach, script(sqltext.PartitionUnbound, d.SQL, all))
	}
	_, err = q.Exec(ctx, strings.Join(attach, ";\n"))
	return made, err
}

// emptyFrom is the first id from one on above which the default partition has no rows, up to so many ids above.
func (m *maintenance) emptyFrom(ctx context.Context, q drive.Querier, from, ids int64) (int64, error) {
	for {
		var far int64
		err := drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&far) },
			sqltext.OfPartition(sqltext.PartitionFar, m.set.Default.SQL), from, from+ids)
		if err != nil || far == 0 {
			return from, err
		}
		from = far + 1
	}
}

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

// settled counts the messages of a partition, or says why it stays.
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

// tailIsYoung says whether one of the last messages of a partition is younger than the retention.
func (m *maintenance) tailIsYoung(ctx context.Context, q drive.Querier, p partitions.Partition) (is bool, err error) {
	err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&is) },
		sqltext.OfPartition(sqltext.PartitionTail, p.SQL), stamp(m.before))
	return is, err
}

// held says which messages keep a partition; "" = none.
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
