package queue

import (
	"cmp"
	"context"
	"math"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/progress"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	reapBatch = 250
	// reapPage is how many rows with an owner, and how many without, a statement reads.
	reapPage = 10_000
	// After a scan from the beginning, wholeShare times its duration must pass before the next one.
	wholeShare = 100
)

// reapPlace is how far reaping has come, for messages that were never claimed and for messages with a due time.
type reapPlace struct {
	id    int64
	dueAt string
	dueID string
}

var reapFirst, reapEnd = reapPlace{math.MinInt64, "-infinity", "0"}, reapPlace{math.MaxInt64, "infinity", "0"}

// reaping are the options of reap. The zero value reads all messages once, and does not mark messages dead that have
// expired or used up their attempts.
type reaping struct {
	topics []string // nil = all. Other topics belong to processes with other limits
	kill   bool
	by     reporter
	from   reapPlace     // where to continue after the first page, which is always read; zero = directly after it
	share  time.Duration // stop after this time and continue later; 0 = no limit, and nothing is skipped
}

// lowest is where the last scan from the beginning found the first unfinished messages: scans begin there. The index
// entries before it are dead, and until vacuum removes them, each scan from the beginning reads all of them. Now and
// then one is needed, to find a row that committed late or was changed by hand.
type lowest struct {
	ready, due progress.Position // exclusive; zero = the beginning
	wholeAt    time.Time         // of the next scan from the beginning
	took       time.Duration     // duration of the last scan from the beginning
}

func (l lowest) place() reapPlace {
	p := reapFirst
	if l.ready != (progress.Position{}) {
		p.id = l.ready.ID
	}
	if l.due != (progress.Position{}) {
		p.dueAt, p.dueID = dueFrom(l.due), strconv.FormatInt(l.due.ID, 10)
	}
	return p
}

func (s *Store) lowest() lowest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.low
}

// raise applies the result of a scan that began at lowest or at the beginning. If no message is left, lowest does not
// change.
func (l *lowest) raise(now time.Time, whole bool, took time.Duration, found lowest) {
	l.ready, l.due = cmp.Or(found.ready, l.ready), cmp.Or(found.due, l.due)
	if whole {
		// a single slow scan may be a pause of the machine
		l.wholeAt, l.took = now.Add(wholeShare*min(took, cmp.Or(l.took, took))), took
	}
}

// orFirst returns the place, with the place of the first messages instead of the beginning of an index.
func (p reapPlace) orFirst(first reapPlace) reapPlace {
	if p.id == reapFirst.id {
		p.id = first.id
	}
	if p.dueAt == reapFirst.dueAt && p.dueID == reapFirst.dueID {
		p.dueAt, p.dueID = first.dueAt, first.dueID
	}
	return p
}

// ReapExpired releases messages whose lease has ended, counting an attempt as Abandon does, and marks expired messages
// without an owner dead. It covers all topics, with this Store's MaxAttempts; a Dispatcher or a Subscriber reaps the
// topics that it handles. It returns the number of messages, even with an error.
func (s *Store) ReapExpired(ctx context.Context) (int, error) {
	_, n, err := s.reap(ctx, reaping{kill: true, by: reporter{logger: s.logger}})
	return n, err
}

// reap returns where to continue next time.
func (s *Store) reap(ctx context.Context, r reaping) (goOn reapPlace, total int, err error) {
	defer func() {
		if total > 0 {
			s.logger.Info("reaped messages whose lease or ExpiresAt had passed", watermill.LogFields{"messages": total})
		}
	}()
	var maxAttempts any
	if r.kill {
		maxAttempts = s.maxAttempts()
	}
	began := time.Now()
	over := func() bool { return r.share > 0 && time.Since(began) >= r.share }
	low := s.lowest()
	first, whole := low.place(), r.share == 0 || !began.Before(low.wholeAt)
	if whole {
		first = reapFirst
	}
	goOn = r.from
	jump := r.from != reapPlace{} && r.from != reapFirst
	for at, done, freshEnded, dueEnded := reapFirst, false, false, false; !done; {
		place := at.orFirst(first)
		var n int
		next := reapEnd // if the statement is not run because too many rows are refused
		var low lowest
		again, err := s.choose(ctx, choice{what: reapRows, topics: r.topics, many: func() (err error) {
			n, next, low, err = s.reapBatch(ctx, r.by, "reap leases", errExhausted, sqltext.ReapLeases,
				reapBatch, s.delays(), maxAttempts, place.id, place.dueAt, place.dueID, reapPage, s.refusals.leftOut(),
				r.topics)
			total += n
			return err
		}, list: sqltext.ListLeased, listArgs: func() []any {
			return []any{place.id, place.dueAt, place.dueID}
		}, one: func(row queueRow) (bool, error) {
			n, _, _, err := s.reapBatch(ctx, r.by, "reap leases", errExhausted, sqltext.ReapMessage,
				row.Source, s.delays(), maxAttempts, row.MessageID)
			total += n
			return n > 0, err
		}})
		if err != nil {
			return goOn, total, err
		}
		if again && over() {
			break
		}
		if again {
			continue
		}
		if place == first {
			s.mu.Lock()
			s.low.raise(time.Now(), whole, time.Since(began), low)
			s.mu.Unlock()
		}
		switch {
		case n == reapBatch: // more of the page may be left
		case jump:
			at, jump = r.from, false
		default: // each index starts over on its own
			at = next
			if at.id == reapEnd.id {
				at.id, freshEnded = reapFirst.id, true
			}
			if at.dueAt == reapEnd.dueAt {
				at.dueAt, at.dueID, dueEnded = reapFirst.dueAt, reapFirst.dueID, true
			}
			goOn, done = at, freshEnded && dueEnded || over()
		}
	}
	for n, again := reapBatch, false; (again || n >= reapBatch) && r.kill; {
		n = 0 // if the statement was not run
		again, err = s.choose(ctx, choice{what: expireRows, topics: r.topics, many: func() (err error) {
			n, _, _, err = s.reapBatch(ctx, r.by, "expire messages", errExpired, sqltext.ExpireMessages, reapBatch,
				s.refusals.leftOut(), r.topics)
			total += n
			return err
		}, list: sqltext.ListExpired, listArgs: func() []any { return []any{true} }, one: func(row queueRow) (bool, error) {
			n, _, _, err := s.reapBatch(ctx, r.by, "expire messages", errExpired, sqltext.ExpireMessage, row.Source,
				row.MessageID)
			total += n
			return n > 0, err
		}})
		if err != nil || over() {
			break
		}
	}
	return goOn, total, err
}

// reapBatch runs one statement, and returns how many messages it changed and its header, if any.
func (s *Store) reapBatch(
	ctx context.Context, by reporter, what string, cause error, statement string, args ...any,
) (n int, next reapPlace, low lowest, err error) {
	var dead []*Message
	scanner := s.scanner()
	err = s.collect(ctx, what, func(rows drive.Rows) error {
		r, err := scanner.scan(rows)
		switch {
		case err != nil:
			return err
		case r.State == "":
			next, low = reapPlace{r.id, r.Source, r.MessageID}, lowestOf(r)
			return nil
		case r.State == unchanged:
			return errUnchanged
		case r.State == Dead:
			dead = append(dead, &r.Message)
		}
		n++
		return nil
	}, statement, args...)
	if err != nil {
		return 0, next, low, err
	}
	for _, msg := range dead {
		why := cause
		if cause == errExhausted {
			why = exhaustedBy(msg)
		}
		s.died(ctx, by, msg, why)
	}
	return n, next, low, nil
}

// lowestOf reads the first rows from the header of a page.
func lowestOf(r *row) (l lowest) {
	if id, err := strconv.ParseInt(r.Topic, 10, 64); err == nil {
		l.ready = progress.Position{ID: id - 1}
	}
	if id, err := strconv.ParseInt(r.Key, 10, 64); err == nil && !r.DueAt.IsZero() {
		l.due = progress.Position{At: r.DueAt.UnixMicro(), ID: id - 1}
	}
	return l
}

// reapSometimes reaps for programs that claim without a Dispatcher.
func (s *Store) reapSometimes(ctx context.Context) (err error) {
	began := time.Now()
	s.mu.Lock()
	goOn := s.reapFrom
	wait := s.reaping || began.Before(s.reapAt)
	s.reaping = s.reaping || !wait
	s.mu.Unlock()
	if wait {
		return nil
	}
	defer func() { // even if an observer panics
		s.mu.Lock()
		defer s.mu.Unlock()
		took := time.Since(began)
		s.reaping, s.reapFrom = false, goOn
		// a single slow run may be a pause of the machine
		s.reapAt = time.Now().Add(max(reapInterval, reapShare*min(took, s.reapTook)))
		s.reapTook = took
	}()
	goOn, _, err = s.reap(ctx, reaping{
		topics: s.claimTopics(), kill: true, by: reporter{logger: s.logger}, from: goOn, share: reapInterval / reapShare,
	})
	return err
}
