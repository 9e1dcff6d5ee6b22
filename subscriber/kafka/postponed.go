package kafka

import (
	"maps"
	"sync"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/inbound"
)

// postponed are the messages whose handlers asked for a later retry, by parkedUUID: the table where they are parked has
// only the backoff of all. What another process asked for is not known here, as it is not without parking. The zero
// value is ready for use, by any number of goroutines.
type postponed struct {
	mu    sync.Mutex
	known map[string]postponement
	limit int // at so many, those whose time has come are forgotten
}

type postponement struct {
	due   time.Time
	cause error
}

// minPostponed keeps postponed from looking for what to forget each time.
const minPostponed = 100

// put notes what became of a delivery, if its handler asked for a later retry.
func (p *postponed) put(uuid string, out inbound.Outcome) {
	if out.Later <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if len(p.known) >= max(p.limit, minPostponed) {
		maps.DeleteFunc(p.known, func(_ string, one postponement) bool { return !now.Before(one.due) })
		p.limit = 2 * len(p.known)
	}
	if p.known == nil {
		p.known = map[string]postponement{}
	}
	p.known[uuid] = postponement{now.Add(out.Later), out.Cause}
}

// early says whether the time of a message has not come, and why it waits.
func (p *postponed) early(uuid string) (early bool, cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one, known := p.known[uuid]
	if known && time.Now().Before(one.due) {
		return true, one.cause
	}
	delete(p.known, uuid)
	return false, nil
}
