package forwarder

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/observe"
)

// writeFailed returns the failures that it could not settle because their rows are locked.
func (s *settler) writeFailed(ctx context.Context, failed []board.Failure, _ bool) (locked []board.Failure, err error) {
	e := s.e
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	begun := time.Now()
	answers := make(map[int64]string, len(failed))
	err = drive.Collect(ctx, e.db, func(rows drive.Rows) error {
		var id int64
		var answer string
		err := rows.Scan(&id, &answer)
		answers[id] = answer
		return err
	}, e.sql.settleFailed, e.failedArgs(failed)...)
	if err != nil {
		e.obs.settled(observe.SettleEnd{Duration: time.Since(begun), Err: err})
		return nil, fmt.Errorf("settle %d failed: %w", len(failed), err)
	}
	outcomes, locked, dead := outcomesOf(failed, answers)
	e.obs.settled(observe.SettleEnd{Failed: len(outcomes), Dead: dead, Duration: time.Since(begun)})
	e.settled(nil, outcomes)
	if dead > 0 && e.cfg.DeadLetterTopic != "" {
		e.db.Wake()
	}
	return locked, nil
}

// failedArgs returns the arguments of the statement that settles failures.
func (e *engine) failedArgs(failed []board.Failure) []any {
	n := len(failed)
	ids, lanes, epochs, attempts := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	delays, errs, permanent, uuids := make([]float64, n), make([]string, n), make([]bool, n), make([]string, n)
	for i, f := range failed {
		ids[i], lanes[i], epochs[i], attempts[i] = f.Row.ID, int64(f.Row.Term.Lane), f.Row.Term.Epoch, int64(f.Attempts)
		delays[i], errs[i], permanent[i] = f.Delay.Seconds(), text.OfError(f.Err), f.Permanent
		uuids[i] = identity(f.Row)
	}
	mostAttempts, minAge := int64(e.cfg.MaxAttempts), max(e.cfg.MinDeadAge, 0).Seconds()
	if mostAttempts < 0 {
		mostAttempts = 1 << 40
	}
	args := []any{e.cfg.Scope, e.owner, ids, lanes, epochs, attempts, delays, errs, permanent, mostAttempts, minAge, uuids}
	if e.cfg.DeadLetterTopic != "" {
		args = append(args, e.cfg.DeadLetterTopic, e.cfg.Name)
	}
	return args
}

// outcomesOf interprets the database's answers: the outcomes of failures, the failures whose rows are locked, and how
// many messages are now dead.
func outcomesOf(
	failed []board.Failure, answers map[int64]string,
) (outcomes []board.Outcome, locked []board.Failure, dead int) {
	outcomes = make([]board.Outcome, 0, len(failed))
	for _, f := range failed {
		o := board.Outcome{Failure: f, Kind: board.Gone} // no answer means that another settled it
		switch answers[f.Row.ID] {
		case "waiting":
			o.Kind = board.Waiting
		case "dead":
			o.Kind = board.Dead
			dead++
		case "fenced":
			o.Kind = board.Fenced
		case "locked":
			locked = append(locked, f)
			continue
		}
		outcomes = append(outcomes, o)
	}
	return outcomes, locked, dead
}
