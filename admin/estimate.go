package admin

import (
	"context"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
)

const (
	// countFor is how long Stats may go on counting what it has not counted to its end.
	countFor = 250 * time.Millisecond
	// countStep is by how much more it then counts.
	countStep = 8
	// samplePages is at how many pages of a table an estimate looks: some 25 MB.
	samplePages = 3000
	// enough is how many messages of a topic a sample must have met.
	enough = 30
)

// farther calls count with bounds that grow until it has counted all, or the next round would take too long.
func (b bounds) farther(count func(bounds) (more bool, err error)) error {
	for begun := time.Now(); ; {
		round := time.Now()
		more, err := count(b)
		took := time.Since(round)
		if err != nil || !more || time.Since(begun)+countStep*took > b.budget {
			return err
		}
		b.each, b.all, b.lane = b.each*countStep, b.all*countStep, b.lane*countStep
	}
}

// estimate replaces what was not counted to its end by an estimate from a sample of the table's pages. It needs no
// statistics, which may be old, and no even spread over lanes and keys; rows in progress or dead do not mislead it.
func (a *Admin) estimate(ctx context.Context, t topicSet, size, sample string) error {
	var pages int64
	err := a.collect(ctx, func(rows drive.Rows) error { return rows.Scan(&pages) }, size)
	if err != nil || pages == 0 {
		return err
	}
	percent := min(100, 100*float64(samplePages)/float64(pages))
	return a.collect(ctx, func(rows drive.Rows) error {
		var topic string
		var state State
		var n int64
		if err := rows.Scan(&topic, &state, &n); err != nil {
			return err
		}
		if c := t.of(topic).count(state); c != nil && (n >= enough || percent == 100) && (c.More || c.N == 0) {
			*c = Count{N: max(c.N, int64(float64(n)*100/percent)), About: percent < 100}
		}
		return nil
	}, sample, percent)
}

// count is that of a state; nil for those that have none.
func (t *TopicStats) count(s State) *Count {
	switch s {
	case Ready:
		return &t.Ready
	case Failing:
		return &t.Failing
	case Delayed:
		return &t.Delayed
	case Dead:
		return &t.Dead
	}
	return nil
}
