package queue

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/progress"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	minLease = time.Second
	maxClaim = 10_000

	// While there is enough that is ready, what fell due is asked for no more often than this, and suspects.
	dueInterval     = 50 * time.Millisecond
	suspectInterval = time.Second
	// reapInterval is how often a Claim reaps first, and reapShare the part of the time that it may take.
	reapInterval = time.Second
	reapShare    = 20
	// maxClaimers is for how many sets of topics marks are kept.
	maxClaimers = 1000
)

// Claim takes messages for an owner, who then has them to itself until the lease is over or the owner settles them with
// Ack, Abandon, Fail or Release. None is no error. It returns ErrInvalid for a zero Owner, a lease of less than a second and a
// limit that is not 1 to 10,000.
//
// A message whose lease is over is given back first, as by ReapExpired, about once a second. So it comes again after
// the wait that it is charged, and not at once.
//
// After an error nobody may know what was claimed. Such messages come again when the lease is over, with the charge.
//
// No order is promised: what fell due takes turns with what was never claimed, the longest waiting first. Claims at once take different
// messages.
func (s *Store) Claim(ctx context.Context, c Claim) ([]Message, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := s.reapSometimes(ctx); err != nil {
		return nil, err
	}
	found, err := s.claim(ctx, c, claimOptions{suspects: true})
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
	}
	return nil
}

// claimOptions are what a Dispatcher asks for.
type claimOptions struct {
	except   []string // topics to leave out
	suspects bool     // whether one message may come whose owner let its lease run out
}

// claims are what a claim brought.
type claims struct {
	msgs    []Message
	full    bool // as many as it might be
	suspect bool // the first of them is a suspect
}

// claimer is how far the claims of some topics have come. Those in a transaction of the caller's leave it alone, because
// they may be rolled back.
type claimer struct {
	mu                   sync.Mutex
	ready, due, suspects progress.Mark
	dueAt, suspectsAt    time.Time // when to ask for them although enough is ready
	dueFirst             bool      // they had their turn
}

func (s *Store) claimer(topics, except []string) *claimer {
	key := strings.Join(topics, "\x00") + "\x01" + strings.Join(except, "\x00")
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.claimers[key]
	if c == nil {
		if s.claimers == nil || len(s.claimers) >= maxClaimers {
			s.claimers = map[string]*claimer{}
		}
		c = &claimer{ready: progress.Mark{Overlap: progress.Position{ID: 1024}}}
		c.due.Overlap.At, c.suspects.Overlap.At = time.Second.Microseconds(), time.Second.Microseconds()
		s.claimers[key] = c
	}
	return c
}

// claim is Claim without reaping. What it has claimed when a statement fails is brought beside the error, unless the caller's
// transaction is lost with it.
func (s *Store) claim(ctx context.Context, c Claim, opts claimOptions) (claims, error) {
	if err := c.check(); err != nil {
		return claims{}, err
	}
	q, joined, err := s.on(ctx)
	if err != nil {
		return claims{}, fmt.Errorf("claim messages: %w", err)
	}
	t := &taking{s: s, q: q, joined: joined, claim: c, except: opts.except, claimer: s.claimer(c.Topics, opts.except)}
	dueFirst, suspectFirst := t.claimer.turns(time.Now())
	more := [...]bool{ready: true, due: true, suspect: opts.suspects}
	for _, turn := range []struct {
		kind  kind
		limit int
		now   bool
	}{
		{suspect, 1, suspectFirst}, {due, (c.Limit + 1) / 2, dueFirst}, {ready, c.Limit, true}, {due, c.Limit, true}, {suspect, 1, !suspectFirst},
	} {
		limit := min(turn.limit, c.Limit-len(t.found.msgs))
		if !turn.now || !more[turn.kind] || limit == 0 {
			continue
		}
		if more[turn.kind], err = t.take(ctx, turn.kind, limit); err != nil {
			break
		}
	}
	if err != nil && joined {
		return claims{}, err
	}
	t.found.full = len(t.found.msgs) == c.Limit
	s.logger.Debug("Claimed messages", watermill.LogFields{"owner": c.Owner.String(), "messages": len(t.found.msgs)})
	return t.found, err
}

// claimExpired takes messages that were not handled in time.
func (s *Store) claimExpired(ctx context.Context, c Claim) ([]Message, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	var msgs []Message
	err := s.collect(ctx, "claim what expired", func(rows drive.Rows) error {
		r, err := s.scan(rows)
		msgs = append(msgs, r.Message)
		return err
	}, sqltext.ClaimExpired, c.Owner.String(), c.LeaseTTL.Seconds(), c.Limit)
	if err != nil {
		return nil, err
	}
	s.logger.Debug("Claimed messages that expired", watermill.LogFields{"owner": c.Owner.String(), "messages": len(msgs)})
	return msgs, nil
}

// turns says what comes before what is ready, this time.
func (c *claimer) turns(now time.Time) (due, suspect bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if due = !c.dueFirst && !now.Before(c.dueAt); due {
		c.dueAt = now.Add(dueInterval)
	}
	if suspect = !now.Before(c.suspectsAt); suspect {
		c.suspectsAt = now.Add(suspectInterval)
	}
	c.dueFirst = due
	return due, suspect
}

type kind int

const (
	ready kind = iota
	due
	suspect
)

func (c *claimer) mark(k kind) *progress.Mark {
	return [...]*progress.Mark{&c.ready, &c.due, &c.suspects}[k]
}

// taking is one call of claim.
type taking struct {
	s       *Store
	q       drive.Querier
	joined  bool
	claim   Claim
	except  []string
	claimer *claimer
	found   claims
}

// take runs one statement, and says whether there may be more of the kind.
func (t *taking) take(ctx context.Context, k kind, limit int) (more bool, err error) {
	var look progress.Look
	began := time.Now()
	mark := t.claimer.mark(k)
	if !t.joined {
		t.claimer.mu.Lock()
		look = mark.Next(began)
		t.claimer.mu.Unlock()
	}
	statement := sqltext.ClaimReady
	args := []any{t.claim.Owner.String(), t.claim.LeaseTTL.Seconds(), limit, look.From.ID, t.claim.Topics, t.except}
	if k != ready {
		statement = sqltext.ClaimDue
		from := "-infinity"
		if look.From.At > 0 {
			from = time.UnixMicro(look.From.At).UTC().Format(time.RFC3339Nano)
		}
		args = append(args, from, k == suspect)
	}
	var result progress.Result
	var rows []row
	err = drive.Collect(ctx, t.q, func(found drive.Rows) error {
		r, err := t.s.scan(found)
		switch {
		case err != nil:
			return err
		case r.State != "":
			rows = append(rows, r)
			return nil
		}
		result.Drawn = progress.Position{ID: r.id}
		if k != ready {
			result.Drawn = progress.Moment(time.UnixMicro(r.id))
		}
		if result.Xmin, err = strconv.ParseInt(r.Source, 10, 64); err == nil {
			result.Number, err = strconv.ParseInt(r.MessageID, 10, 64)
		}
		return err
	}, t.s.db.Render(statement), args...)
	if err != nil {
		return false, t.s.failed("claim messages", err)
	}
	slices.SortFunc(rows, row.compare)
	msgs := make([]Message, len(rows))
	for i, r := range rows {
		msgs[i] = r.Message
	}
	if k == suspect {
		t.found.msgs, t.found.suspect = append(msgs, t.found.msgs...), len(msgs) > 0
	} else {
		t.found.msgs = append(t.found.msgs, msgs...)
	}
	result.Limited = len(rows) >= limit
	if len(rows) > 0 {
		result.Reached = rows[len(rows)-1].position()
	}
	if !t.joined {
		now := time.Now()
		t.claimer.mu.Lock()
		defer t.claimer.mu.Unlock()
		mark.Done(now, now.Sub(began), look, result)
	}
	return result.Limited, nil
}
