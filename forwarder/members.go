package forwarder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/google/uuid"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lease"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/facts"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// waitReportInterval is how often a forwarder logs that it waits for others to leave.
const waitReportInterval = time.Minute

// waitReport records what was last logged about the forwarders that this one waits for.
type waitReport struct {
	since, logged time.Time // zero = it is not waiting
}

// register writes the heartbeat row, and joins the forwarders of the scope unless others must leave first: those that
// read some of the same topics under another scope, or other topics under the same one.
func (r *rebalancer) register(ctx context.Context) error {
	e := r.e
	var ahead []string
	facts := e.facts()
	err := e.withJoinLock(ctx, func(ctx context.Context, q drive.Querier) error {
		if _, err := q.Exec(ctx, e.sql.announce, e.owner, e.cfg.Scope, topicsArg(e.cfg.Topics), e.cfg.Name,
			e.cfg.LeaseTTL.Seconds(), facts, localTime()); err != nil {
			return err
		}
		err := drive.Collect(ctx, q, func(rows drive.Rows) error {
			var scope, name, topics string
			var waits bool
			if err := rows.Scan(&scope, &name, &topics, &waits); err != nil {
				return err
			}
			if topics == "" {
				topics = "all topics"
			}
			if waits {
				topics += ", which has waited for longer"
			}
			ahead = append(ahead, fmt.Sprintf("%s (scope %s with %s)", name, scope, topics))
			return nil
		}, e.sql.ahead, e.owner)
		if err != nil || len(ahead) > 0 {
			return err
		}
		if _, err := q.Exec(ctx, e.sql.createLanes, e.cfg.Scope); err != nil {
			return err
		}
		_, err = q.Exec(ctx, e.sql.join, e.owner, e.cfg.LeaseTTL.Seconds())
		return err
	})
	if err != nil {
		return fmt.Errorf("register forwarder: %w", err)
	}
	r.joined, r.written = len(ahead) == 0, facts
	r.logWaiting(ahead)
	return nil
}

// logWaiting logs which forwarders this one waits for, immediately and then once a minute.
func (r *rebalancer) logWaiting(ahead []string) {
	w, now := &r.waits, time.Now()
	switch {
	case r.joined && w.since.IsZero():
	case r.joined:
		r.e.logger.Info("the other forwarders have stopped: starting", watermill.LogFields{
			"waited": now.Sub(w.since).String(),
		})
		*w = waitReport{}
	case now.Sub(w.logged) >= waitReportInterval:
		if w.logged = now; w.since.IsZero() {
			w.since = now
		}
		r.e.logger.Info("waiting to start: other forwarders read some of the same topics: stop them, or give all of "+
			"them the same Config.Topics",
			watermill.LogFields{"for": strings.Join(ahead, "; "), "waited": now.Sub(w.since).String()})
	}
}

const (
	// joinIdle bounds how long a forwarder may pause between two statements while others wait to join. A busy machine may
	// take a second or two.
	joinIdle = 5 * time.Second
	// holderTimeout bounds the search for the session that has the lock.
	holderTimeout = 2 * time.Second
)

// withJoinLock runs fn in a transaction during which no forwarder joins or is forgotten. If its process vanishes, the
// lock is released after half of the query timeout at most; the others wait longer than that.
func (e *engine) withJoinLock(ctx context.Context, fn func(ctx context.Context, q drive.Querier) error) error {
	limited, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	locked := false
	err := e.db.Transact(limited, func(q drive.Querier) error {
		idle, wait := min(joinIdle, e.cfg.QueryTimeout/2), e.cfg.QueryTimeout*3/4
		if _, err := q.Exec(limited, e.sql.lock, milliseconds(idle), milliseconds(wait)); err != nil {
			return err
		}
		locked = true
		return fn(limited, q)
	})
	if !locked && (text.SQLState(err) == text.LockNotAvailable || errors.Is(err, context.DeadlineExceeded)) {
		return e.withLockHolder(ctx, err)
	}
	return err
}

// withLockHolder adds to an error of waiting for the lock the session that has it.
func (e *engine) withLockHolder(ctx context.Context, waiting error) error {
	ctx, cancel := context.WithTimeout(ctx, holderTimeout)
	defer cancel()
	err := waiting
	_ = drive.Collect(ctx, e.db, func(rows drive.Rows) error { // if this fails, the session is left out
		var pid int64
		var what string
		var idle float64
		if err := rows.Scan(&pid, &what, &idle); err != nil {
			return err
		}
		err = fmt.Errorf("%w: the session with pid %d (%s for %.0f s) holds the lock under which forwarders join: "+
			"end it with SELECT pg_terminate_backend(%d)", waiting, pid, what, idle, pid)
		return nil
	}, e.sql.lockHolder)
	return err
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }

// process distinguishes the pools of this process from those of others.
var process = uuid.NewString()

// program is the package of this process's main function, which all replicas of a service share.
var program = sync.OnceValue(func() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Path != "" {
		return info.Path
	}
	return filepath.Base(os.Args[0])
})

// writeFacts writes the facts about this forwarder if they have changed.
func (r *rebalancer) writeFacts(ctx context.Context) error {
	facts := r.e.facts()
	if facts == r.written {
		return nil
	}
	r.written = ""
	if _, err := r.q.Exec(ctx, r.e.sql.writeFacts, r.e.owner, facts, localTime()); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	r.written = facts
	return nil
}

// localTime lets the database record the difference between the two clocks: times in facts are by this process's clock.
func localTime() float64 { return float64(time.Now().UnixMicro()) / 1e6 }

// facts returns facts about this forwarder for admin.Doctor, as JSON.
func (e *engine) facts() string {
	conns, hung := e.db.Conns(), 0
	e.step(func(_ time.Time, c *coordinator.Coordinator) { hung = c.Hung() })
	f := facts.Forwarder{
		Program: program(), Consumers: e.db.Consumers(), Blocked: e.db.Blocked(),
		Pool: fmt.Sprintf("%s %p", process, e.db.Pool()), PoolConns: conns.Max, PoolNeeds: conns.Needs,
		Handlers: e.db.MostHandlers(), Beside: conns.Beside,
		Hung: hung, Blind: e.to != nil && e.to.blind.Load(), BlockKeyOnDead: e.cfg.BlockKeyOnDead,
		LeaseTTL: e.cfg.LeaseTTL, PublishTimeout: e.cfg.PublishTimeout, CloseTimeout: e.cfg.CloseTimeout,
		Retention: e.cfg.Retention, InboxRetention: e.cfg.InboxRetention,
	}
	if e.cfg.DisableListen && f.Beside > 0 {
		f.Beside--
	}
	if e.pooled {
		f.Beside = 0
	}
	b, _ := json.Marshal(f) // it can always be encoded
	return string(b)
}

// seenLeases are the leases of other forwarders, by id. A lease that stays unchanged for its full duration has expired,
// whatever the clock of the database shows: it may have been set back since the lease was written.
type seenLeases map[string]seenLease

type seenLease struct {
	expiry  int64     // as written in the row
	since   time.Time // when this expiry was first read
	renewed bool      // an earlier expiry was seen before
}

// expired reports whether a lease that was just read has stayed the same for its full duration. The read began and
// ended at the given times: the lease was renewed before the end of the read that first returned it.
func (s seenLeases) expired(id string, expiry int64, lasts time.Duration, began, ended time.Time) bool {
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
func (r *rebalancer) members(ctx context.Context) (list []lease.Member, err error) {
	type lastly struct {
		id     string
		expiry int64
	}
	var dead []lastly
	if r.seen == nil {
		r.seen = seenLeases{}
	}
	live := map[string]bool{}
	began := time.Now()
	err = drive.Collect(ctx, r.q, func(rows drive.Rows) error {
		var id string
		var member bool
		var left, lasts float64
		var expiry int64
		if err := rows.Scan(&id, &member, &left, &expiry, &lasts); err != nil {
			return err
		}
		if live[id] = true; id != r.e.owner && lasts > 0 && r.seen.expired(id, expiry, seconds(lasts), began, time.Now()) {
			dead = append(dead, lastly{id, expiry})
		} else if member {
			list = append(list, lease.Member{ID: id, Left: seconds(left), Silent: id != r.e.owner && !r.seen[id].renewed})
		}
		return nil
	}, r.e.sql.members, r.e.cfg.Scope)
	if err != nil {
		return nil, fmt.Errorf("count forwarders: %w", err)
	}
	r.seen.keep(live)
	for _, d := range dead {
		if _, err := r.q.Exec(ctx, r.e.sql.expire, d.id, d.expiry); err != nil {
			return nil, fmt.Errorf("end the lease of a forwarder that is dead: %w", err)
		}
	}
	return list, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
