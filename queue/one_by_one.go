package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// choice is a statement that chooses its own rows, with its counterpart for a single row.
type choice struct {
	what   string
	topics []string // nil = all
	many   func() error
	fits   func(queueRow) bool // nil, or reports whether there is room for the row
	one    func(queueRow) (changed bool, err error)
	// list is the statement that lists the rows that many may have chosen, and listArgs returns its own arguments.
	list     string
	listArgs func() []any
	// nothing, unless nil, is called instead of many if all rows are refused.
	nothing func()
}

// takes reports whether the statement may choose a row.
func (c choice) takes(row queueRow) bool {
	return (c.topics == nil || slices.Contains(c.topics, row.topic)) && (c.fits == nil || c.fits(row))
}

// choose runs the statement for many rows. First it tries some refused rows that are due, each alone. If the statement
// fails because of a row, or a trigger may have left one unchanged, it also tries some of the rows that the statement
// may have chosen. again reports that this made a difference: the statement may succeed now, or return more. In a
// transaction of the caller, which the error has aborted, nothing is tried alone.
func (s *Store) choose(ctx context.Context, c choice) (again bool, err error) {
	_, joined, err := s.on(ctx)
	if err != nil {
		return false, fmt.Errorf("%s messages: %w", c.what, err)
	}
	if joined {
		return false, c.many()
	}
	cured, err := s.retryDue(c)
	if err != nil {
		return false, err
	}
	if len(s.refusals.ids()) > maxLeftOut {
		rows, err := s.list(ctx, c)
		if err != nil {
			return false, err
		}
		if len(rows) == 0 && c.nothing != nil {
			c.nothing()
		}
		changed, refused, err := s.alone(c, rows, true)
		return err == nil && (cured || len(changed)+refused > 0), err
	}
	failed := c.many()
	if failed != nil && !refusesRow(failed) || failed == nil && !s.mayHaveLeft(ctx, c.what) {
		return cured && failed == nil, failed
	}
	rows, err := s.list(ctx, c)
	if err != nil {
		if failed == nil { // the statement itself has succeeded
			s.logger.Debug("could not check for messages that a trigger left unchanged",
				watermill.LogFields{"statement": c.what, "err": err.Error()})
			return cured, nil
		}
		return false, errors.Join(failed, err)
	}
	changed, refused, err := s.alone(c, rows, failed != nil)
	switch {
	case err != nil:
		return false, err
	case !cured && len(changed)+refused == 0:
		return false, failed
	}
	return true, nil
}

// retryDue retries rows that were refused before, and reports whether one was changed.
func (s *Store) retryDue(c choice) (cured bool, err error) {
	rows := s.refusals.due(c, time.Now())
	if len(rows) == 0 {
		return false, nil
	}
	changed, refused, err := s.alone(c, rows, false)
	s.refusals.retried(c.what, changed, refused, time.Now())
	return len(changed) > 0, err
}

// alone tries rows one by one, and returns the changed rows, how many were refused, and any other error. failed means
// that the statement for many failed or was not run: then an error that all rows have in common is returned too.
func (s *Store) alone(c choice, rows []queueRow, failed bool) (changed []queueRow, refused int, err error) {
	var log []func()
	defer func() {
		for _, line := range log {
			line()
		}
	}()
	state, same := "", 0
	for _, row := range rows {
		if !c.takes(row) {
			continue
		}
		did, err := c.one(row)
		if errors.Is(err, errUnchanged) { // or it moved to another partition while it was locked
			did, err = c.one(row)
		}
		switch {
		case err == nil && did:
			changed = append(changed, row)
		case err == nil:
			s.refusals.forget(c.what, row.ID)
		case !refusesRow(err):
			return changed, refused, err
		default:
			wait, ok := s.refusals.add(c.what, row, time.Now(), causeOf(c.what, row, err))
			if ok {
				refused++
			}
			log = append(log, func() { s.logRefused(c.what, row, wait, err) })
			if now := text.SQLState(err); same == 0 || now == state {
				state, same = now, same+1
			}
			if failed && state != "" && len(changed) == 0 && same == maxSame && len(log) == maxSame {
				log = nil
				return nil, refused, fmt.Errorf("the first %d messages were refused one by one too: fix or drop "+
					"the constraint or trigger that refuses all: %w", maxSame, err)
			}
		}
	}
	return changed, refused, nil
}

// mayHaveLeft reports whether a successful statement may have left rows unchanged because a trigger returned NULL, if a
// check for them is due.
func (s *Store) mayHaveLeft(ctx context.Context, what string) bool {
	now := time.Now()
	s.mu.Lock()
	scan, due := now.After(s.triggersAt), now.After(s.unchangedAt[what])
	if scan {
		s.triggersAt = now.Add(triggersInterval)
	}
	s.mu.Unlock()
	if scan {
		triggers := false
		err := s.collect(ctx, "list triggers", func(rows drive.Rows) error { return rows.Scan(&triggers) },
			sqltext.RowTriggers)
		s.mu.Lock()
		if s.triggers = triggers; err != nil {
			s.triggersAt = time.Time{}
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.triggers || !due && what != reapRows { // reaping paces itself, and each call is for another page
		return false
	}
	if s.unchangedAt == nil {
		s.unchangedAt = map[string]time.Time{}
	}
	s.unchangedAt[what] = now.Add(unchangedInterval)
	return true
}

func (s *Store) list(ctx context.Context, c choice) (rows []queueRow, err error) {
	args := []any{s.refusals.ids(), s.refusals.topics(), maxAlone, maxListed, c.topics}
	if c.listArgs != nil {
		args = append(args, c.listArgs()...)
	}
	err = s.collect(ctx, "list messages", func(found drive.Rows) error {
		var r queueRow
		err := found.Scan(&r.id, &r.Source, &r.MessageID, &r.topic, &r.suspect, &r.size)
		rows = append(rows, r)
		return err
	}, c.list, args...)
	return rows, err
}

// refusedError is the error of a call in which the database refused some of the messages.
type refusedError struct {
	ids   []ID
	first error
	other error // nil, or the error that prevented the rest
}

func (e *refusedError) Error() string {
	return errors.Join(fmt.Errorf("the database refused %d of the messages, such as %q from %q: %w", len(e.ids),
		e.ids[0].MessageID, e.ids[0].Source, e.first), e.other).Error()
}

func (e *refusedError) Unwrap() error { return e.first }

// refusedOf splits an error of eachOf into the refused messages, if any, and the other error.
func refusedOf(err error) (refused refusedError, other error) {
	var r *refusedError
	if errors.As(err, &r) {
		return *r, r.other
	}
	return refusedError{}, err
}

// eachOf runs a statement for messages by their IDs. If the database refuses it because of one message, it runs the
// statement for each half, until the refused messages are alone. It returns a refusedError for these.
func (s *Store) eachOf(ctx context.Context, ids []ID, statement func(ctx context.Context, ids ...ID) error) error {
	err := statement(ctx, ids...)
	if !refusesRow(err) {
		return err
	}
	if _, joined, on := s.on(ctx); joined || on != nil {
		return err
	}
	var refused refusedError
	var halve func(ids []ID, err error) error
	halve = func(ids []ID, err error) error {
		switch {
		case !refusesRow(err):
			return err
		case len(ids) == 1:
			if refused.ids = append(refused.ids, ids[0]); refused.first == nil {
				refused.first = err
			}
			return nil
		}
		a, b := ids[:len(ids)/2], ids[len(ids)/2:]
		if err := halve(a, statement(ctx, a...)); err != nil {
			return err
		}
		return halve(b, statement(ctx, b...))
	}
	refused.other = halve(ids, err)
	if len(refused.ids) == 0 {
		return refused.other
	}
	return &refused
}
