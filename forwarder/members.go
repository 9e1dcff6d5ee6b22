package forwarder

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/lease"
	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// seenLeases are the leases of other forwarders, by id. A lease that stays unchanged for its full duration has expired,
// whatever the clock of the database shows: it may have been set back since the lease was written.
type seenLeases map[string]seenLease

type seenLease struct {
	expiry  int64     // as written in the row
	since   time.Time // when this expiry was first read
	renewed bool      // an earlier expiry was seen before
}

// over reports whether a lease that was just read has stayed the same for its full duration. The read began and ended
// at the given times: the lease was renewed before the end of the read that first returned it.
func (s seenLeases) over(id string, expiry int64, lasts time.Duration, began, ended time.Time) bool {
	last, ok := s[id]
	if !ok || last.expiry != expiry {
		s[id] = seenLease{expiry, ended, ok}
		return false
	}
	return began.Sub(last.since) > lasts
}

// keep drops all others.
func (s seenLeases) keep(ids map[string]bool) {
	for id := range s {
		if !ids[id] {
			delete(s, id)
		}
	}
}

// members returns the live forwarders of the scope that should have lanes, and ends the leases of dead ones.
func (k *keeper) members(ctx context.Context) (list []lease.Member, err error) {
	type lastly struct {
		id     string
		expiry int64
	}
	var dead []lastly
	if k.seen == nil {
		k.seen = seenLeases{}
	}
	live := map[string]bool{}
	began := time.Now()
	err = drive.Collect(ctx, k.q, func(rows drive.Rows) error {
		var id string
		var member bool
		var left, lasts float64
		var expiry int64
		if err := rows.Scan(&id, &member, &left, &expiry, &lasts); err != nil {
			return err
		}
		if live[id] = true; id != k.e.owner && lasts > 0 && k.seen.over(id, expiry, seconds(lasts), began, time.Now()) {
			dead = append(dead, lastly{id, expiry})
		} else if member {
			list = append(list, lease.Member{ID: id, Left: seconds(left), Silent: id != k.e.owner && !k.seen[id].renewed})
		}
		return nil
	}, k.e.sql.members, k.e.cfg.Scope)
	if err != nil {
		return nil, fmt.Errorf("count forwarders: %w", err)
	}
	k.seen.keep(live)
	for _, d := range dead {
		if _, err := k.q.Exec(ctx, k.e.sql.expire, d.id, d.expiry); err != nil {
			return nil, fmt.Errorf("end the lease of a forwarder that is dead: %w", err)
		}
	}
	return list, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
