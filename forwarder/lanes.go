package forwarder

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lease"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// takeLanes records lanes as ours, except those that another forwarder took first.
func (k *keeper) takeLanes(ctx context.Context, query string, list []lease.Term) error {
	if len(list) == 0 {
		return nil
	}
	e := k.e
	lanes, epochs := columns(list)
	had := make([]int64, len(list))
	for i, t := range list {
		had[i] = k.had[t.Lane]
	}
	var got []board.Term
	err := drive.Collect(ctx, k.q, func(rows drive.Rows) error {
		var t board.Term
		err := rows.Scan(&t.Lane, &t.Epoch)
		got = append(got, t)
		k.had[t.Lane] = t.Epoch
		return err
	}, query, e.cfg.Scope, e.owner, lanes, epochs, had)
	if err != nil {
		return fmt.Errorf("take lanes: %w", err)
	}
	e.step(func(_ time.Time, m *machine.Machine) { m.Took(got) })
	return nil
}

// release records lanes as free.
func (k *keeper) release(ctx context.Context, list []board.Term) error {
	if len(list) == 0 {
		return nil
	}
	e := k.e
	lanes, epochs := columns(list)
	if _, err := k.q.Exec(ctx, e.sql.release, e.cfg.Scope, e.owner, lanes, epochs); err != nil {
		return fmt.Errorf("release lanes: %w", err)
	}
	e.step(func(_ time.Time, m *machine.Machine) { m.Released(list) })
	return nil
}

// allLanes reads the lanes, and recreates any that were deleted.
func (k *keeper) allLanes(ctx context.Context) ([]lease.Lane, error) {
	list, err := k.lanes(ctx)
	if err != nil || len(list) == lease.Lanes {
		return list, err
	}
	made, err := k.q.Exec(ctx, k.e.sql.createLanes, k.e.cfg.Scope)
	if err != nil {
		return nil, fmt.Errorf("create lanes: %w", err)
	}
	k.e.logger.Info("rows of the lanes table were missing: created again", watermill.LogFields{"lanes": made})
	return k.lanes(ctx)
}

func (k *keeper) lanes(ctx context.Context) (list []lease.Lane, err error) {
	err = drive.Collect(ctx, k.q, func(rows drive.Rows) error {
		var l lease.Lane
		err := rows.Scan(&l.Lane, &l.Epoch, &l.Owner, &l.Alive)
		list = append(list, l)
		return err
	}, k.e.sql.lanes, k.e.cfg.Scope)
	if err != nil {
		return nil, fmt.Errorf("read lanes: %w", err)
	}
	return list, nil
}

// columns converts terms to arguments.
func columns(list []board.Term) (lanes, epochs []int64) {
	for _, term := range list {
		lanes, epochs = append(lanes, int64(term.Lane)), append(epochs, term.Epoch)
	}
	return lanes, epochs
}
