package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	minLease = time.Second
	maxClaim = 10_000
)

// Claim takes messages for an owner, who then has them to itself until the lease is over or the owner settles them with
// Ack, Abandon, Fail or Release. None is no error. It returns ErrInvalid for a zero Owner, a lease of less than a second and a
// limit that is not 1 to 10,000.
//
// What a claim brings is ordered by no more than: what fell due waited longer, and of the rest what was stored first comes
// first. Claims at once take different messages.
func (s *Store) Claim(ctx context.Context, c Claim) ([]Message, error) {
	msgs, _, err := s.claim(ctx, c, claimOptions{suspects: true})
	return msgs, err
}

// claimOptions are what a Dispatcher asks for.
type claimOptions struct {
	except   []string // topics to leave out
	suspects bool     // whether one message may come whose owner let its lease run out
}

// claim also says whether there may be more.
func (s *Store) claim(ctx context.Context, c Claim, opts claimOptions) (msgs []Message, full bool, err error) {
	switch {
	case c.Owner == Owner{}:
		return nil, false, fmt.Errorf("%w: Claim.Owner is zero: use NewOwner()", ErrInvalid)
	case c.LeaseTTL < minLease:
		return nil, false, fmt.Errorf("%w: Claim.LeaseTTL is %s: it must be at least %s", ErrInvalid, c.LeaseTTL, minLease)
	case c.Limit < 1 || c.Limit > maxClaim:
		return nil, false, fmt.Errorf("%w: Claim.Limit is %d: use 1 to %d", ErrInvalid, c.Limit, maxClaim)
	}
	take := func(statement string, limit int, fourth any) error {
		return s.collect(ctx, "claim messages", func(rows drive.Rows) error {
			msg, err := s.scan(rows)
			if err == nil && msg.State != "" {
				msgs = append(msgs, msg.Message)
			}
			return err
		}, statement, c.Owner.String(), c.LeaseTTL.Seconds(), limit, fourth, c.Topics, opts.except)
	}
	for _, suspects := range []bool{true, false} {
		limit := c.Limit - len(msgs)
		if suspects {
			limit = min(limit, 1)
		}
		if suspects && !opts.suspects || limit == 0 {
			continue
		}
		if err := take(sqltext.ClaimDue, limit, suspects); err != nil {
			return nil, false, err
		}
	}
	if limit := c.Limit - len(msgs); limit > 0 {
		if err := take(sqltext.ClaimReady, limit, 0); err != nil {
			return nil, false, err
		}
	}
	s.logger.Debug("Claimed messages", watermill.LogFields{"owner": c.Owner.String(), "messages": len(msgs)})
	return msgs, len(msgs) == c.Limit, nil
}

// row is a message with what only the store knows of it.
type row struct {
	Message
	id int64
}

func (s *Store) scan(rows drive.Rows) (row, error) {
	r := row{Message: Message{DB: s.db.Name()}}
	var state string
	var metadata []byte
	var dueAt, expiresAt *time.Time
	err := rows.Scan(&r.id, &r.Source, &r.MessageID, &r.Topic, &r.Key, &state, &r.Payload, &metadata, &r.Hash,
		&r.FirstSeenAt, &r.LastSeenAt, &dueAt, &expiresAt, &r.Attempt, &r.LastError)
	if err != nil {
		return r, err
	}
	if r.State = State(state); dueAt != nil {
		r.DueAt = *dueAt
	}
	if expiresAt != nil {
		r.ExpiresAt = *expiresAt
	}
	if err := json.Unmarshal(metadata, &r.Metadata); err != nil {
		return r, fmt.Errorf("metadata of %s/%s: %w", strconv.Quote(r.Source), strconv.Quote(r.MessageID), err)
	}
	return r, nil
}

// Renew gives leases another while, from now on, and returns the messages that are still the owner's. Those that are missing
// are somebody else's, or will be, and what their handler does may be done twice; or they are in the transaction of a
// handler that has acked them, where nobody can take them. It returns ErrInvalid for a zero Owner, a lease of less than a second, and
// an ID that cannot be one.
func (s *Store) Renew(ctx context.Context, r Renew, ids ...ID) ([]ID, error) {
	if r.LeaseTTL < minLease {
		return nil, fmt.Errorf("%w: Renew.LeaseTTL is %s: it must be at least %s", ErrInvalid, r.LeaseTTL, minLease)
	}
	sources, messageIDs, err := split("Renew", r.Owner, ids)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	var ours []ID
	err = s.collect(ctx, "renew leases", func(rows drive.Rows) error {
		var id ID
		err := rows.Scan(&id.Source, &id.MessageID)
		ours = append(ours, id)
		return err
	}, sqltext.RenewLeases, r.Owner.String(), sources, messageIDs, r.LeaseTTL.Seconds())
	return slices.Clip(ours), err
}

// split checks who settles what.
func split(what string, owner Owner, ids []ID) (sources, messageIDs []string, err error) {
	if owner == (Owner{}) {
		return nil, nil, fmt.Errorf("%w: the Owner of %s is zero: use the one that claimed", ErrInvalid, what)
	}
	sources, messageIDs = make([]string, len(ids)), make([]string, len(ids))
	for i, id := range ids {
		if err := id.check(); err != nil {
			return nil, nil, fmt.Errorf("%w: ID %d of %s: %w", ErrInvalid, i, what, err)
		}
		sources[i], messageIDs[i] = id.Source, id.MessageID
	}
	return sources, messageIDs, nil
}
