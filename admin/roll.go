package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// RollConfig configures RollOutbox.
type RollConfig struct {
	// Retention is how long done messages are kept; default 0, which empties no partition. Keep it shorter than
	// forwarder.Config.Retention, or forwarders delete the rows one by one.
	Retention time.Duration
	// At is the time from which Retention is counted back; default now.
	At time.Time
	// PartitionSize is the number of ids of new partitions; default as the newest one.
	PartitionSize int64
	// Reason and Actor are stored in the audit log.
	Reason, Actor string
	// DryRun returns what would be done, and does nothing; default off.
	DryRun bool
	// Progress is called after each partition; default none.
	Progress func(ctx context.Context, r RollResult)
}

// RollResult is the result of RollOutbox.
type RollResult struct {
	At     time.Time    `json:"at"` // when the retention was counted back from
	Leaves []RolledLeaf `json:"leaves"`
	// Made, Emptied and Dropped are numbers of leaves.
	Made    int `json:"made"`
	Emptied int `json:"emptied"`
	Dropped int `json:"dropped"`
	// Ahead is how many leaves were wholly above the last id when it had ended; 0 after an error.
	Ahead int `json:"ahead"`
	// NotMade says why leaves that were needed ahead were not made; "" = none is missing.
	NotMade string `json:"not_made,omitempty"`
	// Removed is how many messages went with the leaves that were emptied; Deleted, how many were deleted one by one.
	Removed int64 `json:"removed"`
	Deleted int64 `json:"deleted"`
	// PutBack is how many messages stayed in leaves that were emptied.
	PutBack int64 `json:"put_back"`
	// AuditID is the entry in the audit log; 0 for a dry run.
	AuditID int64 `json:"audit_id,omitempty"`
}

// RolledLeaf is the result of RollOutbox for a leaf or the default.
type RolledLeaf struct {
	Name string `json:"name"`
	// Action is what was done to it.
	Action LeafAction `json:"action"`
	// Removed and PutBack are numbers of messages.
	Removed int64 `json:"removed,omitempty"`
	PutBack int64 `json:"put_back,omitempty"`
	// Why says why it was kept, or why its rows are deleted one by one.
	Why string `json:"why,omitempty"`
}

// LeafAction is what RollOutbox did to a leaf or to the default partition.
type LeafAction string

// The actions.
const (
	LeafMade    LeafAction = "made"    // ahead of the ids
	LeafEmptied LeafAction = "emptied" // at once; what must stay was put back
	LeafDeleted LeafAction = "deleted" // its old rows were, one by one; Why says why
	LeafDropped LeafAction = "dropped" // it was empty and far behind
	LeafReset   LeafAction = "reset"   // the planner forgot that it was empty, so that it uses its indexes once it is not
	LeafKept    LeafAction = "kept"    // it was left as it is; Why says why
)

const (
	leavesAhead = 4     // as many as this are above the last id
	mostPutBack = 1_000 // messages; more are not copied while the leaf is locked
	mostBytes   = 16 << 20
	dropBehind  = 2 // leaves that stay between one that is dropped and the current one
)

// ErrNotPartitioned is returned by RollOutbox for an outbox that is one table.
//
// Cure: none: forwarders delete old rows.
var ErrNotPartitioned = errors.New("admin: the outbox is not partitioned: use Clean")

// RollOutbox maintains an outbox in partitions (leaves): it makes leaves ahead of the ids, empties leaves in which
// everything is older than the retention, and drops empty ones far behind. Emptying leaves no dead rows. Up to 1,000
// messages of a leaf that must stay are put back in the same transaction, visible to every snapshot and dump all the
// time. If more must stay, the old rows are deleted one by one.
//
// It waits for no lock: leaves in use are left for the next run. Only a leaf that another session locks against all
// others while it is read is waited for, up to 30 seconds. Run it every hour, as the owner of the table. Concurrent
// runs do no harm.
//
// It returns its result also with an error: ErrNotPartitioned, ErrNoActor, an error that names an invalid field or the
// owner of the table, an error of a driver without COPY, or an error of the database or the context.
func (a *Admin) RollOutbox(ctx context.Context, cfg RollConfig) (_ RollResult, err error) {
	r := &roll{Admin: a, cfg: cfg, out: RollResult{Leaves: []RolledLeaf{}}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("roll: %w", err)
		}
	}()
	if err = r.check(ctx); err != nil {
		return r.out, err
	}
	if !cfg.DryRun {
		act := Act{Actor: r.cfg.Actor, Reason: cfg.Reason, Filter: Filter{In: Outbox, States: []State{Done, Discarded}}}
		if cfg.Retention > 0 {
			act.Filter.Before = r.before
		}
		if r.out.AuditID, err = a.begin(ctx, "roll", act); err != nil {
			return r.out, cmp.Or(r.refusal(), err)
		}
		if err = r.refusal(); err != nil {
			return r.out, a.end(ctx, r.out.AuditID, err) // Doctor finds it
		}
	}
	for _, step := range []func(context.Context) error{r.make, r.emptyAll, r.cleanDefault, r.resetAhead, r.dropAll} {
		if err = r.read(ctx); err == nil {
			err = step(ctx)
		}
		if err != nil {
			break
		}
	}
	if err == nil {
		err = r.read(ctx)
		r.out.Ahead = r.set.Ahead()
	}
	if cfg.DryRun {
		return r.out, err
	}
	a.logger.Info("outbox rolled", watermill.LogFields{
		"actor": r.cfg.Actor, "made": r.out.Made, "emptied": r.out.Emptied, "dropped": r.out.Dropped,
		"removed": r.out.Removed, "put_back": r.out.PutBack, "deleted": r.out.Deleted, "audit_id": r.out.AuditID,
	})
	return r.out, a.end(ctx, r.out.AuditID, err)
}

// roll is one call of RollOutbox.
type roll struct {
	*Admin
	cfg    RollConfig
	before time.Time // what was settled before then is old
	set    leaves.Set
	full   bool  // the default has rows
	own    int64 // the promise that it made last, as sqltext.RollPromised says; 0 = none
	out    RollResult
}

// check refuses what cannot be done.
func (r *roll) check(ctx context.Context) error {
	switch {
	case r.cfg.Retention < 0:
		return invalid("admin: RollConfig.Retention is %s: use how long to keep, or 0 to empty no leaf", r.cfg.Retention)
	case r.cfg.PartitionSize < 0:
		return invalid("admin: RollConfig.PartitionSize is %d: use a number of ids, or 0 for the size of the newest leaf",
			r.cfg.PartitionSize)
	}
	now, err := r.now(ctx)
	switch {
	case err != nil:
		return err
	case r.cfg.At.IsZero():
		r.cfg.At = now
	case r.cfg.At.After(now):
		return invalid("admin: RollConfig.At is %s, and by the database's clock it is %s: a future time would remove "+
			"messages that must be kept", stamp(r.cfg.At), stamp(now))
	}
	r.out.At, r.before = r.cfg.At, r.cfg.At.Add(-r.cfg.Retention)
	if r.cfg.Actor, err = r.actor(r.cfg.Actor, r.cfg.Reason); err != nil {
		return err
	}
	if err = r.read(ctx); err != nil {
		return err
	}
	if !r.set.Partitioned {
		return ErrNotPartitioned
	}
	if r.cfg.DryRun {
		return r.blind()
	}
	return nil
}

// refusal is why the role may not roll; nil = it may.
func (r *roll) refusal() error {
	if r.set.Grant != "" {
		return fmt.Errorf("role %s does not own table %s, and only its owner may empty or make leaves: "+
			"run it as %s, or %s", r.set.Role, r.db.Render("{outbox}"), r.set.Owner, r.set.Grant)
	}
	if r.set.Create != "" {
		return fmt.Errorf("role %s owns table %s and lacks CREATE on its schema or tablespace: %s", r.set.Owner,
			r.db.Render("{outbox}"), r.set.Create)
	}
	return r.blind()
}

// blind is an error if the role may not know which leaves are behind the ids.
func (r *roll) blind() error {
	if r.set.Known {
		return nil
	}
	ids := r.db.Render("{outbox_id_seq}")
	return fmt.Errorf("role %s may not read sequence %s, so the last id is not known: "+
		"GRANT SELECT ON SEQUENCE %[2]s TO %[1]s", r.set.Role, ids)
}

func (r *roll) read(ctx context.Context) (err error) {
	ctx, cancel := r.bound(ctx)
	defer cancel()
	for range crowdedTries { // it waits for nothing but a lock that was taken in the very moment
		if r.set, err = leaves.Read(ctx, r.db, r.db.Tables()); text.SQLState(err) != lockNotAvailable {
			break
		}
	}
	return explain(err)
}

// did notes what was done to a leaf.
func (r *roll) did(ctx context.Context, l RolledLeaf) {
	r.out.Leaves = append(r.out.Leaves, l)
	switch l.Action {
	case LeafMade:
		r.out.Made++
	case LeafEmptied:
		r.out.Emptied++
		r.out.Removed += l.Removed
		r.out.PutBack += l.PutBack
	case LeafDeleted:
		r.out.Deleted += l.Removed
	case LeafDropped:
		r.out.Dropped++
	}
	if r.cfg.Progress != nil {
		r.cfg.Progress(ctx, r.out)
	}
}

// kept notes why a leaf was left as it is.
func (r *roll) kept(ctx context.Context, name, format string, args ...any) {
	r.did(ctx, RolledLeaf{Name: name, Action: LeafKept, Why: fmt.Sprintf(format, args...)})
}

// inUse is why a leaf was kept whose locks could not be had.
const inUse = "it is in use: the next run retries"

// noted counts messages in the audit log; within a transaction that is sent as it is.
func (r *roll) noted(n int64) string {
	return fmt.Sprintf("UPDATE %s SET matched = matched + %d, touched = touched + %[2]d WHERE id = %[3]d",
		r.db.Render("{audit}"), n, r.out.AuditID)
}

// of renders a statement for a leaf.
func (r *roll) of(statement, leaf string) string { return sqltext.OfLeaf(r.db.Render(statement), leaf) }
