package queue

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// A user's constraint or trigger on the table may refuse the update of some rows, and the statement for many rows fails
// with them. It is then repeated for fewer rows, down to one. A row that is refused alone is left out of the statements
// for many, and tried alone after a growing wait. A trigger that returns NULL also refuses a row: the statement
// succeeds, and the row is unchanged.

const (
	minRefusedWait = time.Second
	maxRefusedWait = 5 * time.Minute
	// maxLeftOut is how many rows a statement for many can leave out. If more are refused, messages are handled one by
	// one.
	maxLeftOut = 1000
	// maxRefused is how many refused rows a Store remembers. Further rows are tried alone each time.
	maxRefused = 20_000
	// maxAlone is how many rows one call tries alone, out of maxListed from each index. maxDue is how many refused rows it
	// retries first; the number doubles after each call that changed all of them, up to maxAlone.
	maxAlone  = 200
	maxListed = reapPage
	maxDue    = 10
	// maxSame is how many rows may fail alone with the same SQLSTATE, while none succeeds, before the table is assumed to
	// be at fault.
	maxSame = 20
	// triggersInterval is how often a Store checks for triggers that may return NULL, and unchangedInterval how often for
	// rows that they left unchanged.
	triggersInterval  = time.Minute
	unchangedInterval = time.Second
)

// The statements that choose their own rows.
const (
	claimRows        = "claim"
	claimExpiredRows = "claim expired"
	expireRows       = "expire"
	reapRows         = "reap"
)

// unchanged is the State that a statement returns for a message that it left unchanged.
const unchanged State = "unchanged"

// errUnchanged is the error of a statement that locked a row and did not change it.
// Cause: its function ends with RETURN NULL.
// Cure: RETURN NEW, or drop the trigger.
var errUnchanged = errors.New("the row was left unchanged: a BEFORE UPDATE trigger on the table returned NULL")

// refusesRow reports whether only some rows of a statement may have caused an error.
func refusesRow(err error) bool { return errors.Is(err, errUnchanged) || text.RefusesRow(err) }

// queueRow holds the known data of a row before it is changed.
type queueRow struct {
	ID
	id      int64 // 0 = unknown: the row was selected by its ID
	topic   string
	suspect bool
	size    int
}

// refusals remembers the rows that the database has refused to update. It is safe for concurrent use.
type refusals struct {
	mu      sync.Mutex
	rows    map[refusalKey]*refusedRow
	retries map[string]int // by statement: how many rows to retry together; 0 = maxDue
	pruneAt time.Time
}

type refusalKey struct {
	what string
	ID
}

type refusedRow struct {
	queueRow
	cause string
	wait  time.Duration
	at    time.Time // of the next try
}

// add records a row that was refused, and returns how long to skip it; ok is false if there are too many.
func (r *refusals) add(what string, row queueRow, now time.Time, cause string) (wait time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !now.Before(r.pruneAt) {
		r.pruneAt = now.Add(maxRefusedWait)
		for key, old := range r.rows {
			if now.Sub(old.at) > maxRefusedWait { // never retried: it was settled in another way
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

// leftOut returns the ids of up to maxLeftOut rows to leave out of statements that choose their own rows.
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

// due returns the rows to retry with a statement, the longest waiting first.
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

// retried records the result of a retry. If rows were changed, all rows refused for the same causes are due now.
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

// waits reports whether it is too early to retry a row.
func (r *refusals) waits(what string, id ID, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	row := r.rows[refusalKey{what, id}]
	return row != nil && now.Before(row.at)
}

// refused records a row that the database refused to update alone, logs it once a minute for each cause, and returns
// how long to skip it; ok is false if too many are refused.
func (s *Store) refused(what string, row queueRow, err error) (wait time.Duration, ok bool) {
	wait, ok = s.refusals.add(what, row, time.Now(), causeOf(what, row, err))
	s.logRefused(what, row, wait, err)
	return wait, ok
}

func causeOf(what string, row queueRow, err error) string {
	return what + " " + text.SQLState(err) + " " + text.Constraint(err) + " " + row.topic
}

func (s *Store) logRefused(what string, row queueRow, wait time.Duration, err error) {
	if s.lines.Allow("refused " + causeOf(what, row, err)) {
		// Cause: a CHECK added NOT VALID, a policy, or a trigger that raises or returns NULL.
		// Cure: it is tried again, usually within 5 min.
		s.logger.Error("message refused by the database: the others continue, and it is retried on its own: fix or "+
			"drop the constraint or trigger on the table, or correct the row", err, watermill.LogFields{
			"topic": row.topic, "source": row.Source, "message_id": row.MessageID, "statement": what,
			"sqlstate": text.SQLState(err), "constraint": text.Constraint(err), "table": s.db.Tables().Queue,
			"wait": wait.String(), "refused_messages": s.refusals.len(),
		})
	}
}
