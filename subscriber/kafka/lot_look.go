package kafka

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// lookEvery is how often the table is looked at, for all partitions of a subscription together.
const lookEvery = time.Second

// oneLook has one look at the table serve all partitions that want to know what became of their keys. It is safe for
// concurrent use.
type oneLook struct {
	piles func(ctx context.Context, keys []string) (map[string]pile, error)

	mu    sync.Mutex
	asked []question
	last  time.Time // when a look last began
}

// question is what a partition knew when it asked.
type question struct {
	glance
	to chan<- glance
}

// ask has a look that begins after it tell what it found. There must be room in the channel.
func (o *oneLook) ask(ctx context.Context, g glance, to chan<- glance) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.asked = append(o.asked, question{g, to}); len(o.asked) == 1 {
		go o.look(ctx, time.Until(o.last.Add(lookEvery)))
	}
}

func (o *oneLook) look(ctx context.Context, wait time.Duration) {
	core.Pause(ctx, wait)
	o.mu.Lock()
	asked := o.asked
	o.asked, o.last = nil, time.Now()
	o.mu.Unlock()
	keys := map[string]bool{}
	for _, q := range asked {
		for key := range q.began {
			keys[key] = true
		}
	}
	piles, err := o.piles(context.WithoutCancel(ctx), slices.Sorted(maps.Keys(keys)))
	for _, q := range asked {
		q.piles, q.err = piles, err
		q.to <- q.glance
	}
}
