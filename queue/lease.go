package queue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// Renew makes leases end leaseTTL from now, and returns the messages that it renewed. A missing message has or gets
// another owner and may be handled twice, or a transaction has locked it, such as that of a handler that acked it. It
// returns ErrInvalid for a zero Owner, a lease of less than a second, or an invalid ID. If a constraint or trigger on
// the table refuses some messages, the others are renewed and returned, with an error that names a refused one.
func (s *Store) Renew(ctx context.Context, owner Owner, leaseTTL time.Duration, ids ...ID) ([]ID, error) {
	if leaseTTL < minLease {
		return nil, fmt.Errorf("%w: the lease of Renew is %s: it must be at least %s", ErrInvalid, leaseTTL, minLease)
	}
	if _, _, err := split("Renew", owner, ids); err != nil || len(ids) == 0 {
		return nil, err
	}
	var ours []ID
	err := s.eachOf(ctx, ids, func(ctx context.Context, ids ...ID) error {
		sources, messageIDs, _ := split("Renew", owner, ids)
		var renewed []ID
		left := 0
		err := s.collect(ctx, "renew leases", func(rows drive.Rows) error {
			var id ID
			changed := false
			if err := rows.Scan(&id.Source, &id.MessageID, &changed); err != nil {
				return err
			}
			if changed {
				renewed = append(renewed, id)
			} else {
				left++
			}
			return nil
		}, sqltext.RenewLeases, owner.String(), sources, messageIDs, leaseTTL.Seconds())
		if err == nil { // a deferred constraint may refuse rows that were returned
			ours = append(ours, renewed...)
		}
		if err == nil && left > 0 {
			err = s.failed("renew leases", errUnchanged)
		}
		return err
	})
	slices.SortFunc(ours, ID.compare) // messages renewed together with refused ones were renewed twice
	return slices.Compact(ours), err
}

// split checks the arguments of a settling statement and sorts the IDs.
func split(what string, owner Owner, ids []ID) (sources, messageIDs []string, err error) {
	if owner == (Owner{}) {
		return nil, nil, fmt.Errorf("%w: the Owner of %s is zero: use the owner that claimed", ErrInvalid, what)
	}
	for i, id := range ids {
		if err := id.check(); err != nil {
			return nil, nil, fmt.Errorf("%w: ID %d of %s: %w", ErrInvalid, i, what, err)
		}
	}
	sources, messageIDs = make([]string, len(ids)), make([]string, len(ids))
	for i, id := range slices.SortedFunc(slices.Values(ids), ID.compare) {
		sources[i], messageIDs[i] = id.Source, id.MessageID
	}
	return sources, messageIDs, nil
}
