package admin

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/partitions"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// makeAhead makes the partitions that are missing ahead of the last id, all in one transaction.
func (m *maintenance) makeAhead(ctx context.Context) error {
	size := cmp.Or(m.cfg.PartitionSize, m.set.Size())
	if all := m.set.Partitions; m.set.End() == math.MaxInt64 {
		m.out.NotMade = "partition " + all[len(all)-1].Name + " has no upper bound: replace it by one that has"
		return nil
	}
	if size == 0 {
		m.out.NotMade = "no partition shows the size: set PartitionSize"
		return nil
	}
	if m.cfg.DryRun {
		m.out.Made = m.names(m.missing(size))
		return nil
	}
	var made []string
	taken := 0 // names taken by other relations
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

// missing returns the number of partitions to make.
func (m *maintenance) missing(size int64) int {
	if n := migrations.Ahead - len(m.set.Above()); n > 0 && size < (math.MaxInt64-m.above(size))/(migrations.Ahead+1) {
		return n
	}
	return 0
}

// above returns the id at which the next partition begins. A statement that began before a partition was made still
// routes its rows to the default partition, which by then refuses them. So at least a whole partition of ids lies
// between the ids that are handed out now and the new partition. If the partitions ahead ran out, the default partition
// takes those ids.
func (m *maintenance) above(size int64) int64 {
	if newest := m.set.Size(); newest > 0 {
		size = min(size, newest)
	}
	return max(m.set.End(), m.set.Last+size)
}

// names returns the names of the next n partitions: the outbox's name with numbers.
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
func (m *maintenance) makeLocked(
	ctx context.Context, q drive.Querier, size int64, taken int,
) (made []string, err error) {
	if err = m.reserve(ctx, q); err != nil {
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
		lock := sqltext.PartitionBriefly + "; " + sqltext.OfPartition(sqltext.PartitionLock, d.SQL)
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

// emptyFrom returns the first id, starting at from, above which the default partition has no rows for this many ids.
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
