package schema

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Cause: others wrote much meanwhile.
// Cure: none is needed.
var errNear = errors.New("ids come close to the end of the first partition")

// Cause: another call replaced the check.
// Cure: none is needed.
var errOther = errors.New("another call of Partition replaced the check of the first partition")

// convert adds the check and swaps the tables, again with another check if that is needed.
func (p *partitioning) convert(ctx context.Context) error {
	for {
		err := p.bind(ctx)
		if err == nil && p.end > 0 {
			err = p.swap(ctx)
		}
		if errors.Is(err, errOther) {
			continue
		}
		if errors.Is(err, errNear) {
			p.room = min(2*p.room, mostIDs)
			if err = p.unbind(ctx); err == nil {
				continue
			}
		}
		if err == nil || p.end == 0 {
			return err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unbindTime)
		defer cancel()
		if left := p.unbind(ctx); left != nil {
			err = fmt.Errorf("%w; and the check %s is still there, from id %d on messages would be refused: run it again, "+
				"or ALTER TABLE %s DROP CONSTRAINT %s: %w",
				err, p.below(), p.end, p.names.OutboxName(), sqltext.Quote(p.below()), left)
		}
		return err
	}
}

// near returns errNear if less than a size is left below the check. It takes no lock.
func (p *partitioning) near(ctx context.Context) error {
	set, err := leaves.Read(ctx, p.db, p.names)
	if err == nil && !set.Partitioned && p.end-set.Last < p.size {
		return errNear
	}
	return err
}

// bind chooses the end of the first partition and makes sure that no row is above it. It leaves p.end at 0 if the
// outbox is in partitions.
func (p *partitioning) bind(ctx context.Context) error {
	if err := p.read(ctx, p.db); err != nil || p.set.Partitioned {
		return err
	}
	validated := false
	err := p.alone(ctx, anytime, func(q drive.Querier) error {
		p.end = 0
		if err := p.read(ctx, q); err != nil || p.set.Partitioned {
			return err
		}
		highest, err := p.check(ctx, q, &validated, &p.end)
		if err != nil {
			return err
		}
		if highest-p.set.Last > p.size {
			return fmt.Errorf("it has ids up to %d, and the last that was handed out is %d: the first partition would have "+
				"room for more ids than are ever used", highest, p.set.Last)
		}
		highest = max(highest, p.set.Last)
		if highest > math.MaxInt64-p.room-migrations.Partitions*p.size {
			return fmt.Errorf("its ids are at %d: above that no ids are left for %d partitions of %d", highest,
				migrations.Partitions, p.size)
		}
		if p.end >= highest+p.size {
			return nil // of a call that was killed
		}
		p.end, validated = highest+p.room, false
		for _, s := range []string{sqltext.PartitionUnbound, sqltext.PartitionBound} {
			if _, err := q.Exec(ctx, p.of(s, "", "")); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || p.end == 0 || validated {
		return err
	}
	return p.validate(ctx)
}

func anytime(context.Context) error { return nil }

// check reads the check that is there, and the highest id that is stored.
func (p *partitioning) check(ctx context.Context, q drive.Querier, valid *bool, end *int64) (highest int64, err error) {
	var options string
	err = drive.Collect(ctx, q, func(rows drive.Rows) error {
		return rows.Scan(valid, end, &highest, &options)
	}, p.names.Render(sqltext.PartitionBelow), p.below())
	p.with = leaves.With(options)
	return highest, err
}

// validate reads the table, until ids come close to the check.
func (p *partitioning) validate(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() {
		ticks := time.NewTicker(crowdedPause)
		defer ticks.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
			}
			if err := p.near(ctx); errors.Is(err, errNear) {
				cancel(err)
			}
		}
	})
	err := p.db.Transact(ctx, func(q drive.Querier) error {
		if err := drive.Collect(ctx, q, func(drive.Rows) error { return nil }, sqltext.NoTimeout); err != nil {
			return err
		}
		_, err := q.Exec(ctx, p.of(sqltext.PartitionValidate, "", ""))
		return err
	})
	switch {
	case err != nil && errors.Is(context.Cause(ctx), errNear):
		return errNear
	case text.SQLState(err) == text.UndefinedObject: // another call has replaced it
		return errOther
	}
	return err
}

const (
	// unbindTimeouts let what takes the check away wait a moment: it must succeed, also where others follow each other
	// so closely that NOWAIT never finds the table free.
	unbindTimeouts = `SELECT set_config('lock_timeout', '50ms', true), set_config('statement_timeout', '10s', true),
       set_config('synchronous_commit', 'local', true)`
	unbindTime = time.Minute // after the context is over
)

// unbind takes the check away.
func (p *partitioning) unbind(ctx context.Context) error {
	for {
		err := p.db.Transact(ctx, func(q drive.Querier) error {
			if err := drive.Collect(ctx, q, func(drive.Rows) error { return nil }, unbindTimeouts); err != nil {
				return err
			}
			_, err := q.Exec(ctx, p.of(sqltext.PartitionUnbound, "", ""))
			return err
		})
		if text.SQLState(err) != lockNotAvailable {
			return err
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return fmt.Errorf("the outbox was in use all the time: %w", ctx.Err())
		}
	}
}
