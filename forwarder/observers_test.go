package forwarder

import (
	"context"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/observe"
)

// lastAge is an observer that remembers how old the last message was.
type lastAge struct{ age time.Duration }

func (*lastAge) PublishStart(ctx context.Context, _ observe.PublishStart) context.Context { return ctx }
func (l *lastAge) PublishEnd(_ context.Context, end observe.PublishEnd)                   { l.age = end.Age }

// TestAgeIsOfTheDatabasesClock: how old a message is does not depend on the clock of the machine that publishes it.
func TestAgeIsOfTheDatabasesClock(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		eye := &lastAge{}
		o := observers{publishes: []observe.PublishObserver{eye}}
		asked := time.Now()
		there := asked.Add(ahead)
		o.clock(there, asked)
		o.publishEnd(t.Context(), &board.Call{Row: &board.Row{CreatedAt: there.Add(-time.Minute)}, Started: asked},
			board.Result{})
		if off := eye.age - time.Minute; off < 0 || off > 50*time.Second {
			t.Errorf("with a clock that is %s ahead, a message of a minute ago is %s old", ahead, eye.age)
		}
		o.publishEnd(t.Context(), &board.Call{Row: &board.Row{CreatedAt: there.Add(time.Hour)}, Started: asked},
			board.Result{})
		if eye.age != 0 {
			t.Errorf("a message of the future is %s old", eye.age)
		}
	}
}
