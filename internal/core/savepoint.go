package core

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

func inSavepoint(ctx context.Context, outer *scope, fn func(context.Context) error) error {
	s, name := &scope{tx: outer.tx, parent: outer}, drive.NextSavepoint()
	err := outer.use(func() error {
		if s.tx.innermost != outer {
			return ErrTxBusy
		}
		if err := s.tx.q.Mark(ctx); err != nil {
			return err
		}
		if _, err := s.tx.q.Exec(ctx, "savepoint "+name); err != nil {
			return fmt.Errorf("savepoint: %w", err)
		}
		s.tx.innermost = s
		return nil
	})
	if err != nil {
		return err
	}
	finished := false
	defer func() {
		if !finished {
			_ = s.end()
			s.abandon(errors.Join(errUnfinished, outer.use(func() error { return s.undo(ctx, name) })))
		}
	}()
	err = text.SafeError(fn(bindTx(ctx, s)))
	finished = true
	if endErr := s.end(); err == nil {
		err = endErr
	}
	overErr := outer.use(func() error {
		if err == nil {
			err = s.release(ctx, name)
		}
		if err != nil {
			err = errors.Join(err, s.undo(ctx, name))
		}
		return nil
	})
	return errors.Join(err, overErr)
}

// release keeps the changes made since the savepoint.
func (s *scope) release(ctx context.Context, name string) error {
	if _, err := s.tx.q.Exec(ctx, "release savepoint "+name); err != nil {
		return fmt.Errorf("release savepoint: %w", err)
	}
	s.parent.afterCommit = append(s.parent.afterCommit, s.afterCommit...)
	s.parent.waiting = append(s.parent.waiting, s.waiting...)
	s.tx.innermost = s.parent
	return nil
}

// undo rolls back to the savepoint and releases it; otherwise it would exist until the end of the transaction.
func (s *scope) undo(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drive.RollbackTimeout)
	defer cancel()
	for _, verb := range []string{"rollback to", "release"} {
		if _, err := s.tx.q.Exec(ctx, verb+" savepoint "+name); err != nil {
			s.tx.broken = fmt.Errorf("%s savepoint: %w", verb, err)
			switch text.SQLState(err) {
			case "25P01", "3B001": // no transaction, or none with the savepoint
				s.tx.broken = errors.Join(drive.ErrTxEnded, s.tx.broken)
			}
			return s.tx.broken
		}
	}
	s.tx.innermost = s.parent
	return nil
}
