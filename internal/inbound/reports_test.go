package inbound

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/observe"
)

// A hung observer is abandoned.
func TestTheEndDoesNotWaitForObservers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		r := NewReports([]observe.Observer{hangs{stuck}}, watermill.NopLogger{})
		r.Post(meter.PartitionState{})
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			r.Stop()
		}()
		time.Sleep(lastReports)
		over := isClosed(stopped)
		close(stuck)
		if <-stopped; !over {
			t.Error("the end waits for the observer")
		}
	})
}

type hangs struct{ until chan struct{} }

func (h hangs) PartitionState(context.Context, meter.PartitionState) { <-h.until }

func isClosed(c <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-c:
		return true
	default:
		return false
	}
}
