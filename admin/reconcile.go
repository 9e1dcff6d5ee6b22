package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	// windowSize is the number of messages compared at a time, which bounds the memory to some 10 MB.
	windowSize = 100_000
	// skew is the largest allowed difference between the clocks of broker, forwarders and database.
	skew = 10 * time.Minute
)

var reconcile = Verb{Name: "reconcile", States: map[Table][]State{Outbox: {Done}}}

// Reconcile compares the published messages that are still kept with a broker's, by UUID, and publishes the missing
// messages again, under the same UUIDs and in the order of their ids per key. A broker that acknowledges before it
// syncs to disk, or whose log was truncated, does not report such a loss. Try it with Action.DryRun first:
// Result.Matched is the number of missing messages, Result.Compared the number of compared ones.
//
// The filter must select topics that go to this broker. Reconcile reads the broker from ten minutes before the first
// message was written, so clocks may differ by up to ten minutes; with a larger difference it sends messages again that
// the broker has. It returns the errors of acts, and errors of the broker, with the result so far.
func (a *Admin) Reconcile(ctx context.Context, log broker.TopicReader, act Action) (r Result, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", reconcile.Name, err)
		}
	}()
	s, _, err := a.check(reconcile, &act)
	if err == nil && log == nil {
		err = invalid("the broker.TopicReader is nil: use kafka.NewTopicReader or nats.NewTopicReader")
	}
	if err != nil {
		return r, err
	}
	d, err := a.doing(ctx, reconcile, act, s, &r)
	if err != nil {
		return r, err
	}
	var lost []place // found by a dry run; may be more than it records
	w := d.walk(Done)
	if !act.DryRun {
		if r.AuditID, err = a.begin(ctx, reconcile.Name, act); err != nil {
			return r, err
		}
	}
	defer func() {
		if err != nil && r.AuditID != 0 {
			err = a.end(ctx, r.AuditID, err)
		}
	}()
	for w.from != nil && d.left > 0 {
		kept, err := d.kept(ctx, w)
		if err != nil {
			return r, err
		}
		var missing []place
		for _, topic := range slices.Sorted(maps.Keys(kept)) {
			k := kept[topic]
			if err := k.strike(ctx, log, topic); err != nil {
				return r, fmt.Errorf("topic %q: %w", topic, err)
			}
			if err := d.compared(ctx, k.rows); err != nil {
				return r, err
			}
			for _, id := range k.id {
				missing = append(missing, numbered(id))
			}
		}
		// A key may be on several topics.
		slices.SortFunc(missing, func(x, y place) int { return cmp.Compare(x.ID, y.ID) })
		if missing, err = d.sendAgain(ctx, missing); err != nil {
			return r, err
		}
		if act.DryRun && len(lost) <= dryCount {
			lost = append(lost, missing...)
		}
		if act.Progress != nil {
			act.Progress(ctx, r)
		}
	}
	if act.DryRun {
		if len(lost) <= dryCount {
			d.tried(lost)
		}
		return r, nil
	}
	a.logger.Info("operator act", watermill.LogFields{
		"action": reconcile.Name, "actor": a.cfg.Actor, "compared": r.Compared, "touched": r.Touched, "skipped": r.Skipped,
		"audit_id": r.AuditID,
	})
	return r, a.end(ctx, r.AuditID, nil)
}

// keptMessages are published messages of one topic. Published messages were acknowledged, so a log that is read later
// contains them.
type keptMessages struct {
	rows  int64            // their number
	first time.Time        // when the first was written
	id    map[digest]int64 // of messages not yet found in the log
}

// kept reads the next messages, by topic.
func (d *doing) kept(ctx context.Context, w *walk) (map[string]*keptMessages, error) {
	topics := map[string]*keptMessages{}
	for n := 0; w.from != nil && n < windowSize; {
		w.batch, w.want = maxStep, maxStep // regardless of load: no page waits for it
		found, err := w.next(ctx, d.source)
		if err != nil {
			return nil, err
		}
		ids := make([]int64, len(found))
		for i, m := range found {
			ids[i] = m.ID
		}
		if len(ids) == 0 {
			continue
		}
		var id int64
		var uuid, topic string
		var at time.Time
		err = d.collect(ctx, func(rows drive.Rows) error {
			if err := rows.Scan(&id, &uuid, &topic, &at); err != nil {
				return err
			}
			k := topics[topic]
			if k == nil {
				k = &keptMessages{first: at, id: map[digest]int64{}}
				topics[topic] = k
			}
			if at.Before(k.first) {
				k.first = at
			}
			k.rows++
			if d := digestOf(uuid); k.id[d] == 0 { // two rows with one UUID are one message
				k.id[d] = id
			}
			n++
			return nil
		}, sqltext.PublishedMessages, ids)
		if err != nil {
			return nil, err
		}
	}
	return topics, nil
}

// Cause: the broker has every kept message.
// Cure: none needed.
var errNoneLeft = errors.New("all messages were found")

// strike removes the messages that the log contains.
func (k *keptMessages) strike(ctx context.Context, log broker.TopicReader, topic string) error {
	err := log.Each(ctx, topic, k.first.Add(-skew), func(uuid string) error {
		delete(k.id, digestOf(uuid))
		if len(k.id) == 0 {
			return errNoneLeft
		}
		return nil
	})
	if errors.Is(err, errNoneLeft) {
		return nil
	}
	return err
}

// compared counts compared messages.
func (d *doing) compared(ctx context.Context, n int64) error {
	d.result.Compared += n
	if d.act.DryRun {
		return nil
	}
	return d.exec(ctx, sqltext.CountCompared, d.result.AuditID, n)
}

// sendAgain makes messages pending, or counts them in a dry run. It returns the messages that match the act.
func (d *doing) sendAgain(ctx context.Context, missing []place) ([]place, error) {
	missing = d.asked.of(missing)
	missing = missing[:min(int64(len(missing)), d.left)]
	if d.act.DryRun {
		d.result.Matched.N += int64(len(missing))
		d.left -= int64(len(missing))
		return missing, nil
	}
	for batch := range slices.Chunk(missing, d.cfg.BatchSize) {
		if err := d.change(ctx, []State{Done}, batch); err != nil {
			return nil, err
		}
	}
	return missing, nil
}
