package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// A constraint or trigger that users have put on the table may refuse the update of some rows, and with them the
// statement for many rows that includes them. Such a statement is repeated for fewer rows, down to one. A row that is
// refused alone is left out of the statements for many, and tried alone after a growing wait. A trigger that returns
// NULL refuses a row too: the statement succeeds, and the row is unchanged.

const (
	minRefusedWait = time.Second
	maxRefusedWait = 5 * time.Minute
	// maxLeftOut is how many rows a statement for many leaves out. If more are refused, messages are handled one by one.
	maxLeftOut = 1000
	// maxRefused is how many refused rows a Store remembers. Further ones are tried alone again and again.
	maxRefused = 20_000
	// maxAlone is how many rows one call tries alone, from maxListed in either index. maxDue is how many refused rows it
	// tries again first: twice as many after each call that changed all of them, up to maxAlone.
	maxAlone  = 200
	maxListed = reapPage
	maxDue    = 10
	// maxSame is how many rows may fail alone with the same SQLSTATE, and none succeed, before the error is the table's.
	maxSame = 20
	// triggersInterval is how often a Store checks for triggers that may return NULL, and unchangedInterval how often it
	// checks for rows that such triggers left unchanged.
	triggersInterval  = time.Minute
	unchangedInterval = time.Second
)

// The statements that choose their own rows.
const (
	claimRows  = "claim"
	buryRows   = "bury"
	expireRows = "expire"
	reapRows   = "reap"
)

// unchanged is the state of a row that means that a statement left a message unchanged.
const unchanged State = "unchanged"

// errUnchanged is the error of a statement that locked a row and did not change it.
// Cause: its function ends with RETURN NULL, as one of an AFTER trigger may.
// Cure: RETURN NEW, or drop the trigger.
var errUnchanged = errors.New("the row stayed as it was: a BEFORE UPDATE trigger on the table returned NULL")

// refusesRow reports whether an error may be caused by some rows of a statement and not by others.
func refusesRow(err error) bool { return errors.Is(err, errUnchanged) || text.RefusesRow(err) }

// queueRow is the known data of a row before it is changed.
type queueRow struct {
	ID
	id      int64 // 0 = unknown: the row was named by its ID, not chosen by a statement
	topic   string
	suspect bool
	size    int
}

// refusals are the rows that the database has refused to update. It is safe for concurrent use.
type refusals struct {
	mu      sync.Mutex
	rows    map[refusalKey]*refusedRow
	retries map[string]int // of a statement, how many rows to try again at once; 0 = maxDue
	pruneAt time.Time
}

type refusalKey struct {
	what string // the statement
	ID
}

type refusedRow struct {
	queueRow
	cause string
	wait  time.Duration
	at    time.Time // when to try again
}

// add records a row that was refused, and returns how long to skip it; ok is false if there are too many.
func (r *refusals) add(what string, row queueRow, now time.Time, cause string) (wait time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !now.Before(r.pruneAt) {
		r.pruneAt = now.Add(maxRefusedWait)
		for key, old := range r.rows {
			if now.Sub(old.at) > maxRefusedWait { // nothing has tried it again: it was settled in another way
				delete(r.rows, key)
			}
		}
	}
	key := refusalKey{what, row.ID}
	old := r.rows[key]
	if old == nil {
		if len(r.rows) >= maxRefused {
			return maxRefusedWait, false
		}
		if r.rows == nil {
			r.rows = map[refusalKey]*refusedRow{}
		}
		old = &refusedRow{wait: minRefusedWait / 2}
		r.rows[key] = old
	}
	old.queueRow, old.cause, old.wait = row, cause, min(2*old.wait, maxRefusedWait)
	old.at = now.Add(old.wait)
	return old.wait, true
}

// forget must be called when a statement has succeeded for rows.
func (r *refusals) forget(what string, ids ...ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rows) == 0 {
		return
	}
	for _, id := range ids {
		delete(r.rows, refusalKey{what, id})
	}
}

func (r *refusals) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.rows)
}

// leftOut returns the ids of the rows to leave out of statements that choose their own rows: all, or the first
// maxLeftOut.
func (r *refusals) leftOut() []int64 {
	ids := r.ids()
	slices.Sort(ids)
	return ids[:min(len(ids), maxLeftOut)]
}

// topics returns the topics of the refused rows.
func (r *refusals) topics() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	topics := map[string]bool{}
	for _, row := range r.rows {
		topics[row.topic] = true
	}
	return append([]string{}, slices.Sorted(maps.Keys(topics))...)
}

func (r *refusals) ids() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := []int64{}
	for _, row := range r.rows {
		if row.id != 0 {
			ids = append(ids, row.id)
		}
	}
	return ids
}

// due returns the rows to try again with a statement, those that have waited longest first.
func (r *refusals) due(c choice, now time.Time) (rows []queueRow) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var due []*refusedRow
	for key, row := range r.rows {
		if key.what == c.what && !now.Before(row.at) && c.takes(row.queueRow) {
			due = append(due, row)
		}
	}
	slices.SortFunc(due, func(a, b *refusedRow) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.id, b.id)) })
	for _, row := range due[:min(len(due), cmp.Or(r.retries[c.what], maxDue))] {
		rows = append(rows, row.queueRow)
	}
	return rows
}

// retried records the result of a retry. If rows were changed, all that were refused for the same causes are due now.
func (r *refusals) retried(what string, changed []queueRow, refused int, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(changed) == 0 {
		delete(r.retries, what)
		return
	}
	if r.retries == nil {
		r.retries = map[string]int{}
	}
	if refused == 0 {
		r.retries[what] = min(2*cmp.Or(r.retries[what], maxDue), maxAlone)
	}
	causes := map[string]bool{}
	for _, row := range changed {
		key := refusalKey{what, row.ID}
		if old := r.rows[key]; old != nil {
			causes[old.cause] = true
			delete(r.rows, key)
		}
	}
	for key, row := range r.rows {
		if key.what == what && causes[row.cause] && now.Before(row.at) {
			row.at = now
		}
	}
}

// waits reports whether a row must not be tried yet.
func (r *refusals) waits(what string, id ID, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	row := r.rows[refusalKey{what, id}]
	return row != nil && now.Before(row.at)
}

// refused records a row that the database refused to update alone, logs it once a minute for each cause, and returns
// how long to skip it; ok is false if there are too many of them.
func (s *Store) refused(what string, row queueRow, err error) (wait time.Duration, ok bool) {
	wait, ok = s.refusals.add(what, row, time.Now(), causeOf(what, row, err))
	s.logRefused(what, row, wait, err)
	return wait, ok
}

func causeOf(what string, row queueRow, err error) string {
	return what + " " + text.SQLState(err) + " " + text.Constraint(err) + " " + row.topic
}

func (s *Store) logRefused(what string, row queueRow, wait time.Duration, err error) {
	if s.lines.Due("refused " + causeOf(what, row, err)) {
		// Cause: a CHECK added NOT VALID, a policy, or a trigger that raises or returns NULL, refuses the update of this row.
		// Cure: the message is tried again alone, usually at most 5 min after the last time.
		s.logger.Error("message refused by the database: the others go on, and it is tried again alone: "+
			"drop or mend the constraint or trigger on the table, or correct the row", err, watermill.LogFields{
			"topic": row.topic, "source": row.Source, "message_id": row.MessageID, "statement": what,
			"sqlstate": text.SQLState(err), "constraint": text.Constraint(err), "table": s.db.Tables().Queue,
			"wait": wait.String(), "refused_messages": s.refusals.len(),
		})
	}
}

// choice is a statement that chooses its own rows, and its counterpart for one row.
type choice struct {
	what   string
	topics []string // nil = all
	many   func() error
	fits   func(queueRow) bool // nil, or reports whether there is room for the row
	one    func(queueRow) (changed bool, err error)
	// list is the statement that lists rows that many may have chosen, and listArgs returns its own arguments.
	list     string
	listArgs func() []any
	// nothing is nil, or called instead of many if all rows are refused.
	nothing func()
}

// takes reports whether the statement may choose a row.
func (c choice) takes(row queueRow) bool {
	return (c.topics == nil || slices.Contains(c.topics, row.topic)) && (c.fits == nil || c.fits(row))
}

// choose runs the statement for many rows. First it tries alone some of the refused rows that are due, and, if the
// statement fails because of a row, or a trigger may have left one unchanged, some of the rows that it may have chosen.
// Again reports that this made a difference: the statement may succeed now, or bring more. In a transaction of the
// caller, which the error has ended, nothing is tried alone.
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
		if failed == nil { // what the statement did is done
			s.logger.Debug("could not look for messages that a trigger kept as they were",
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

// retryDue tries rows again that were refused before, and reports whether one was changed.
func (s *Store) retryDue(c choice) (cured bool, err error) {
	rows := s.refusals.due(c, time.Now())
	if len(rows) == 0 {
		return false, nil
	}
	changed, refused, err := s.alone(c, rows, false)
	s.refusals.retried(c.what, changed, refused, time.Now())
	return len(changed) > 0, err
}

// alone tries rows one by one, and returns which were changed and how many were refused. It returns other errors. Failed
// means that the statement for many failed, or was not run: then an error of all rows is returned too.
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
		if errors.Is(err, errUnchanged) { // or it moved while it was locked
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
				return nil, refused, fmt.Errorf("the first %d messages were refused one by one too: "+
					"drop or mend what refuses all: %w", maxSame, err)
			}
		}
	}
	return changed, refused, nil
}

// mayHaveLeft reports whether a successful statement may have left rows unchanged because a trigger returned NULL, and
// it is time to check for them.
func (s *Store) mayHaveLeft(ctx context.Context, what string) bool {
	now := time.Now()
	s.mu.Lock()
	look, due := now.After(s.triggersAt), now.After(s.unchangedAt[what])
	if look {
		s.triggersAt = now.Add(triggersInterval)
	}
	s.mu.Unlock()
	if look {
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
	if !s.triggers || !due && what != reapRows { // reaping pauses itself, and each call is for another page
		return false
	}
	if s.unchangedAt == nil {
		s.unchangedAt = map[string]time.Time{}
	}
	s.unchangedAt[what] = now.Add(unchangedInterval)
	return true
}

func (s *Store) list(ctx context.Context, c choice) (rows []queueRow, err error) {
	args := []any{s.refusals.ids(), s.refusals.topics(), maxAlone, maxListed}
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

// refusedError is the error of a call for messages of which the database refused some.
type refusedError struct {
	ids   []ID
	first error
	other error // nil, or the error that stopped the rest
}

func (e *refusedError) Error() string {
	return errors.Join(fmt.Errorf("the database refused %d of the messages, such as %q from %q: %w", len(e.ids),
		e.ids[0].MessageID, e.ids[0].Source, e.first), e.other).Error()
}

func (e *refusedError) Unwrap() error { return e.first }

// refusedOf splits an error of eachOf into the refused messages, perhaps none, and another error.
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
