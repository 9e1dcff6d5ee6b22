package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// Target is a database, or one set of tables in it.
type Target struct {
	// Key names the target: for Get, in logs and in metrics. It is not empty, and unique in the discovery.
	Key string
	// DSN is the connection string, in a form that pgxpool.ParseConfig accepts. Targets with the same DSN share a pool.
	DSN string
	// Tables names its tables, for example in a schema per tenant.
	Tables outbox.Tables
}

// Discovery returns all targets, in any order. It must return when its context ends. After an error the known targets
// stay. They also stay after an empty result, which is usually a fault: it is accepted if all results are empty for
// Config.RefreshInterval.
type Discovery func(ctx context.Context) ([]Target, error)

// Static returns a Discovery with fixed targets.
func Static(targets ...Target) Discovery {
	return func(context.Context) ([]Target, error) { return targets, nil }
}

const (
	discoverTimeout = 30 * time.Second
	firstRetry      = time.Second // after a failed discovery
)

// minEmpty is the number of empty results before they are accepted.
const minEmpty = 3

// Cause: the discovery returned an empty list.
// Cure: after three of them the databases are removed.
var errNoTargets = errors.New("discovery returned no database: the known ones are kept for now")

// refresh polls the discovery until ctx ends.
func (f *Fleet) refresh(ctx context.Context) {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = min(firstRetry, f.cfg.RefreshInterval), f.cfg.RefreshInterval
	failing := false
	empty, emptySince := 0, time.Time{} // consecutive empty results
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		targets, err := f.poll(ctx)
		switch {
		case err != nil || len(targets) > 0:
			empty = 0
		case empty == 0:
			empty, emptySince, err = 1, time.Now(), errNoTargets
		default:
			if empty++; empty < minEmpty || time.Since(emptySince) < f.cfg.RefreshInterval {
				err = errNoTargets
			}
		}
		wait := f.cfg.RefreshInterval
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			wait = min(wait, retry.NextBackOff())
			if fields := (watermill.LogFields{"known": len(f.Keys())}); failing {
				f.logger.Debug("discovering databases still fails", fields.Add(watermill.LogFields{"err": err.Error()}))
			} else {
				// Cause: the discovery failed, returned nothing, or took over 30 s.
				// Cure: new databases are not served.
				f.logger.Error("discovering databases failed: keeping the known ones: retrying", err, fields)
			}
		default:
			if failing {
				f.logger.Info("discovering databases works again", nil)
			}
			retry.Reset()
			f.apply(ctx, targets)
		}
		failing = err != nil
		timer.Reset(wait)
	}
}

// discovered is the result of a discovery.
type discovered struct {
	targets []Target
	err     error
}

// poll calls the discovery. If the call does not return in time, poll gives up, and the next poll waits for the same
// call.
func (f *Fleet) poll(ctx context.Context) ([]Target, error) {
	ctx, cancel := context.WithTimeout(ctx, min(discoverTimeout, f.cfg.RefreshInterval))
	defer cancel()
	if f.polled == nil {
		polled := make(chan discovered, 1)
		f.polled = polled
		f.background.Go(func() {
			var a discovered
			defer func() {
				if p := recover(); p != nil {
					a = discovered{nil, core.Panicked(p)}
				}
				polled <- a
			}()
			a.targets, a.err = f.discovery(ctx)
		})
	}
	select {
	case a := <-f.polled:
		f.polled = nil
		return slices.Clone(a.targets), a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("it did not return in time: %w", ctx.Err())
	}
}

// apply applies the result of a discovery. Only the goroutine of refresh calls it.
func (f *Fleet) apply(ctx context.Context, targets []Target) {
	slices.SortStableFunc(targets, func(a, b Target) int { return strings.Compare(a.Key, b.Key) })
	wanted, bad := make(map[string]Target, len(targets)), map[string]error{}
	for i, t := range targets {
		switch {
		case t.Key == "":
			bad[""] = errors.New("the Key is empty")
		case bad[t.Key] != nil:
		case i > 0 && targets[i-1].Key == t.Key && targets[i-1] != t:
			bad[t.Key] = errors.New("two targets have this Key: keys must be unique")
			delete(wanted, t.Key)
		default:
			wanted[t.Key] = t
		}
	}
	opened, failed := f.openAll(ctx, wanted)
	for key, err := range failed {
		bad[key] = err
	}
	if ctx.Err() != nil {
		for _, o := range opened {
			f.release(o)
		}
		return
	}
	f.swap(wanted, opened, bad)
}

// swap installs opened handles and releases removed ones.
func (f *Fleet) swap(wanted map[string]Target, opened map[string]*opened, bad map[string]error) {
	var added, changed, removed []string
	f.mu.Lock()
	var gone []*member
	for key, m := range f.members {
		_, want := wanted[key]
		_, fault := bad[key]
		switch {
		case opened[key] != nil:
			changed = append(changed, key)
			gone = append(gone, m)
		case !want && !fault:
			removed = append(removed, key)
			gone = append(gone, m)
			delete(f.members, key)
		}
	}
	for key, o := range opened {
		if f.members[key] == nil {
			added = append(added, key)
		}
		f.members[key] = &member{opened: o, gone: make(chan struct{})}
	}
	said := f.faults
	f.faults = bad
	f.keys = make([]string, 0, len(f.members))
	for key := range f.members {
		f.keys = append(f.keys, key)
	}
	slices.Sort(f.keys)
	known := len(f.keys)
	f.mu.Unlock()

	for _, m := range gone {
		close(m.gone)
		f.release(m.opened)
	}
	for key, err := range bad {
		if old := said[key]; old == nil || old.Error() != err.Error() {
			// Cause: the new target is invalid, such as its DSN.
			// Cure: correct the target.
			f.logger.Error("discovered database cannot be used: an older handle is kept", err, watermill.LogFields{"db": key})
		}
	}
	if len(added)+len(changed)+len(removed) > 0 {
		f.logger.Info("databases changed", watermill.LogFields{
			"known": known, "added": some(added), "changed": some(changed), "removed": some(removed),
		})
	}
	f.found.Do(func() { close(f.running) })
}

// some lists the first keys of a long list.
func some(keys []string) string {
	slices.Sort(keys)
	const most = 5
	if len(keys) <= most {
		return strings.Join(keys, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(keys[:most], ", "), len(keys)-most)
}
