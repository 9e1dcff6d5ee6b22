package admin

import (
	"context"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
)

const (
	// countFor is how long Stats may continue counts that stopped at their bounds.
	countFor = 250 * time.Millisecond
	// countStep is the factor by which each round raises the bounds.
	countStep = 8
	// samplePages is the number of pages that an estimate reads: some 25 MB.
	samplePages = 3000
	// enough is the number of messages of a topic that a sample must contain.
	enough = 30
)

// farther calls count with growing bounds until everything is counted, or the next round would take too long.
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

// estimate replaces incomplete counts by estimates from a sample of the table's pages. It needs neither statistics,
// which may be old, nor an even spread over lanes and keys; rows in progress or dead do not distort it.
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

// count returns the field for a state, or nil.
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
