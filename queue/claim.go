package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/progress"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	minLease = time.Second
	maxClaim = 10_000
	// usualClaim is the number of rows to allocate space for.
	usualClaim = 256

	defaultMaxBytes = 64 << 20 // of payloads

	// While enough messages are ready, due messages and suspects are claimed no more often than this.
	dueInterval     = 50 * time.Millisecond
	suspectInterval = time.Second
	// A Claim reaps first if the last time was reapInterval ago, and spends at most 1/reapShare of the time on it.
	reapInterval = time.Second
	reapShare    = 20
	// maxClaimCursors is the number of topic sets for which cursors are kept.
	maxClaimCursors = 1000
)

// Claim takes messages for an owner, until the lease ends or the owner settles them with Ack, Abandon, Fail or Release.
// An empty result is not an error. It returns ErrInvalid for a zero Owner, a lease of less than a second, a limit
// outside 1 to 10,000, or a negative MaxBytes.
//
// About once a second, messages whose lease has ended are given back first, as by ReapExpired, but only those of topics
// for which this Store's Claim was called. If an error is returned after messages were claimed, they are retried when
// the lease ends, which counts an attempt. If the database refuses the update of a message because of a constraint or
// trigger on the table, the message is left out with an error line, and tried again after a growing wait; in a
// transaction of the caller Claim returns the error instead.
//
// Order is not promised. Concurrent claims take different messages.
func (s *Store) Claim(ctx context.Context, c Claim) ([]Message, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	cursor := s.claimCursor(c.Topics)
	if err := s.reapSometimes(ctx); err != nil {
		return nil, err
	}
	found, err := s.claim(ctx, c, claimRequest{suspects: true, whole: true}, cursor)
	if len(found.msgs) > 0 {
		err = nil
	}
	return found.msgs, err
}

func (c Claim) check() error {
	switch {
	case c.Owner == Owner{}:
		return fmt.Errorf("%w: Claim.Owner is zero: use NewOwner()", ErrInvalid)
	case c.LeaseTTL < minLease:
		return fmt.Errorf("%w: Claim.LeaseTTL is %s: it must be at least %s", ErrInvalid, c.LeaseTTL, minLease)
	case c.Limit < 1 || c.Limit > maxClaim:
		return fmt.Errorf("%w: Claim.Limit is %d: use 1 to %d", ErrInvalid, c.Limit, maxClaim)
	case c.MaxBytes < 0:
		return fmt.Errorf("%w: Claim.MaxBytes is %d: use a positive size", ErrInvalid, c.MaxBytes)
	}
	return nil
}

// claimRequest limits the result of a claim.
type claimRequest struct {
	limits   []room // limits of topics that have their own, sorted by topic
	suspects bool   // may return one message whose owner let its lease expire
	whole    bool   // a claim that finds nothing continues after the page that it read
}

// room is how many more messages of a topic may be claimed.
type room struct {
	topic string
	n     int
}

// claims is the result of a claim.
type claims struct {
	msgs    []Message
	full    bool // there may be more than fit
	empty   bool // no messages
	suspect bool // the first message is a suspect
	paged   bool // read a page, and more may follow it
	// behind reports, for topics with a limit, whether their messages may have been skipped. Topics that are not in it
	// have not changed.
	behind map[string]bool
}

// claim claims without reaping first. If a statement fails, the messages claimed before it are returned together with
// the error, unless it aborted the caller's transaction. Calls for topics with limits must not overlap.
func (s *Store) claim(ctx context.Context, c Claim, a claimRequest, from *claimCursor) (found claims, err error) {
	if err := c.check(); err != nil {
		return claims{}, err
	}
	if len(c.Topics) == 0 {
		c.Topics = nil // all: in SQL an empty list would match none
	}
	q, joined, err := s.onKept(ctx)
	if err != nil {
		return claims{}, fmt.Errorf("claim messages: %w", err)
	}
	t := &claimAttempt{s: s, q: q, claim: c, request: a, cursor: from, room: int64(cmp.Or(c.MaxBytes, defaultMaxBytes))}
	if joined {
		t.cursor = &claimCursor{joined: true}
	}
	t.request.limits = slices.Clone(a.limits)
	again, err := s.choose(ctx, choice{
		what: claimRows, topics: c.Topics,
		many: func() error { return t.many(ctx) }, fits: t.fits,
		one:  func(row queueRow) (bool, error) { return t.one(ctx, row, false) },
		list: sqltext.ListClaimable, listArgs: func() []any { return []any{t.noRoom(), !t.request.suspects} },
		nothing: func() { t.found.empty = len(t.found.msgs)+len(t.noRoom()) == 0 && t.request.suspects },
	})
	if again {
		t.found.full, t.found.empty = true, false
	}
	if err != nil && joined {
		return claims{}, err
	}
	s.logger.Debug("claimed messages", watermill.LogFields{"owner": c.Owner.String(), "messages": len(t.found.msgs)})
	return t.found, err
}

// many claims with the statements for many messages.
func (t *claimAttempt) many(ctx context.Context) (err error) {
	limit := t.claim.Limit
	if len(t.found.msgs) == 0 && t.cursor.onlyReady(t.request, time.Now()) {
		err = t.ready(ctx, limit)
	}
	// At most half of them may be due ones; if there were few others, more of these fit.
	for again := len(t.found.msgs) < limit && t.room > 0; again && err == nil; again = again &&
		len(t.request.limits) == 0 && t.room > 0 {
		again, err = t.topics(ctx, limit-len(t.found.msgs))
	}
	for t.request.whole && t.found.paged && len(t.found.msgs) == 0 && err == nil {
		_, err = t.topics(ctx, limit)
	}
	return err
}

// limit returns a topic's own limit, if it has one.
func (t *claimAttempt) limit(topic string) *room {
	i := slices.IndexFunc(t.request.limits, func(l room) bool { return l.topic == topic })
	if i < 0 {
		return nil
	}
	return &t.request.limits[i]
}

// fits reports whether the limits allow a message that was left out before, or is tried alone.
func (t *claimAttempt) fits(row queueRow) bool {
	limit := t.limit(row.topic)
	return len(t.found.msgs) < t.claim.Limit && (limit == nil || limit.n > 0) && (!row.suspect || t.request.suspects) &&
		(len(t.found.msgs) == 0 || int64(row.size) <= t.room)
}

// one claims one message.
func (t *claimAttempt) one(ctx context.Context, row queueRow, expired bool) (claimed bool, err error) {
	scanner := t.s.scanner()
	var msgs []Message
	err = t.s.collectOn(ctx, t.s.onKept, "claim message", func(rows drive.Rows) error {
		r, err := scanner.scan(rows)
		switch {
		case err != nil:
		case r.State == unchanged:
			err = errUnchanged
		default:
			msgs = append(msgs, r.Message)
		}
		return err
	}, sqltext.ClaimMessage, row.Source, row.MessageID, t.claim.Owner.String(), t.claim.LeaseTTL.Seconds(), expired)
	if err != nil || len(msgs) == 0 { // a deferred constraint may refuse a row that was returned
		return false, err
	}
	t.room = max(0, t.room-int64(len(msgs[0].Payload)))
	if limit := t.limit(msgs[0].Topic); limit != nil {
		limit.n--
	}
	if row.suspect && !expired {
		t.found.msgs, t.found.suspect = slices.Insert(t.found.msgs, 0, msgs...), true
		t.request.suspects = false
	} else {
		t.found.msgs = append(t.found.msgs, msgs...)
	}
	return true, nil
}

// noRoom returns the topics whose limits are reached.
func (t *claimAttempt) noRoom() []string {
	topics := []string{}
	for _, l := range t.request.limits {
		if l.n <= 0 {
			topics = append(topics, l.topic)
		}
	}
	return topics
}

// claimExpired takes messages that were not handled before ExpiresAt, and reports whether there may be more.
func (s *Store) claimExpired(ctx context.Context, c Claim) (msgs []Message, more bool, err error) {
	if err := c.check(); err != nil {
		return nil, false, err
	}
	t := &claimAttempt{s: s, claim: c, request: claimRequest{suspects: true},
		room: int64(cmp.Or(c.MaxBytes, defaultMaxBytes))}
	again, err := s.choose(ctx, choice{
		what: claimExpiredRows, topics: c.Topics, fits: t.fits,
		many: func() error {
			if len(t.found.msgs) >= c.Limit || t.room == 0 {
				return nil
			}
			scanner := s.scanner(&more)
			var found []Message
			err := s.collect(ctx, "claim expired messages", func(rows drive.Rows) error {
				r, err := scanner.scan(rows)
				if err == nil {
					found = append(found, r.Message)
				}
				return err
			}, sqltext.ClaimExpired, t.args(c.Limit-len(t.found.msgs))...)
			if err == nil {
				t.found.msgs = append(t.found.msgs, found...)
			}
			return err
		},
		one:  func(row queueRow) (bool, error) { return t.one(ctx, row, true) },
		list: sqltext.ListExpired, listArgs: func() []any { return []any{false} },
	})
	if msgs = t.found.msgs; err != nil && len(msgs) == 0 {
		return nil, false, err
	}
	s.logger.Debug("claimed expired messages", watermill.LogFields{"owner": c.Owner.String(), "messages": len(msgs)})
	return msgs, more || again || len(msgs) == c.Limit, nil
}

// claimAttempt is one call of claim.
type claimAttempt struct {
	s       *Store
	q       drive.Querier
	claim   Claim
	request claimRequest
	cursor  *claimCursor
	found   claims
	room    int64 // bytes left for payloads; 0 = messages were left out for lack of room
}

// claimedRows is the result of a claim statement.
type claimedRows struct {
	rows       []*row
	over       []*row                    // of topics that are full
	cut        bool                      // more payloads did not fit
	pages      map[int]progress.Position // where reads of a whole page stopped
	ready, due progress.Result
}

// of returns the header of the rows of a kind.
func (a *claimedRows) of(kind int) progress.Result {
	if kind == ready {
		return a.ready
	}
	return a.due
}

// ready takes messages that were never claimed, with the cheapest statement, as long as there are many.
func (t *claimAttempt) ready(ctx context.Context, limit int) error {
	began := time.Now()
	scan := t.cursor.nextReady(began)
	found, err := t.run(ctx, sqltext.ClaimReady, limit, scan.From.ID)
	if err != nil {
		t.cursor.failedReady(began, scan)
		return err
	}
	t.found.full = found.cut || len(found.rows) == limit
	t.cursor.claimedReady(began, scan, found, t.found.full)
	t.add(found)
	t.found.full = t.found.full || t.room == 0 // no other kind is claimed
	return nil
}

// topics takes messages of all kinds, and reports whether another statement would return more right away.
func (t *claimAttempt) topics(ctx context.Context, limit int) (again bool, err error) {
	began := time.Now()
	p := t.cursor.plan(began, limit, t.request, t.s.lowest())
	statement := sqltext.ClaimTopics
	if p.pages {
		statement = sqltext.ClaimPages
	}
	found, err := t.run(ctx, statement, limit, p.args()...)
	if err != nil {
		t.cursor.failed(began, p)
		return false, err
	}
	over := t.cursor.claimed(began, p, found)
	t.add(found)
	t.found.suspect = t.found.suspect || over.suspect
	t.found.paged = over.paged
	t.found.full, t.found.empty, t.found.behind = over.full, over.empty && len(t.found.msgs) == 0, over.behind
	t.request.suspects = t.request.suspects && !over.suspect
	return over.dueLeft, nil
}

func (t *claimAttempt) add(found claimedRows) {
	if !slices.IsSortedFunc(found.rows, (*row).compare) {
		slices.SortStableFunc(found.rows, (*row).compare)
	}
	t.found.msgs = slices.Grow(t.found.msgs, len(found.rows))
	for _, r := range found.rows {
		t.room = max(0, t.room-int64(len(r.Payload)))
		if r.kind == suspect {
			t.found.msgs = slices.Insert(t.found.msgs, 0, r.Message)
		} else {
			t.found.msgs = append(t.found.msgs, r.Message)
		}
	}
	if found.cut {
		t.room = 0
	}
}

// args returns the first arguments of all statements that claim.
func (t *claimAttempt) args(limit int) []any {
	return []any{t.claim.Owner.String(), t.claim.LeaseTTL.Seconds(), limit, t.claim.Topics, t.room, t.s.refusals.leftOut()}
}

// run runs a statement whose first row is a header.
func (t *claimAttempt) run(ctx context.Context, statement string, limit int, args ...any) (a claimedRows, err error) {
	scanner := t.s.scanner()
	if statement != sqltext.ClaimReady {
		scanner.dest = append(scanner.dest, &scanner.row.read)
	}
	err = drive.Collect(ctx, t.q, func(found drive.Rows) error {
		r, err := scanner.scan(found)
		switch {
		case err != nil:
			return err
		case r.State == "over":
			a.over = append(a.over, r)
			return nil
		case r.State == "page":
			if a.pages == nil {
				a.pages = map[int]progress.Position{}
			}
			a.pages[r.read] = r.position()
			return nil
		case r.State != "":
			a.rows = append(a.rows, r)
			return nil
		}
		a.rows = make([]*row, 0, min(t.claim.Limit, usualClaim))
		return a.header(r)
	}, t.s.db.Render(statement), append(t.args(limit), args...)...)
	if err != nil {
		return claimedRows{}, t.s.failed("claim messages", err)
	}
	return a, nil
}

// header reads the snapshot columns of a claim.
func (a *claimedRows) header(r *row) (err error) {
	a.ready.Drawn, a.cut = progress.Position{ID: r.id}, r.Key == "cut"
	if a.ready.Xmin, err = strconv.ParseInt(r.Source, 10, 64); err == nil {
		a.ready.Number, err = strconv.ParseInt(r.MessageID, 10, 64)
	}
	a.due = a.ready
	if err == nil && r.Topic != "" {
		var clock int64
		clock, err = strconv.ParseInt(r.Topic, 10, 64)
		a.due.Drawn = progress.Moment(time.UnixMicro(clock))
	}
	return err
}
