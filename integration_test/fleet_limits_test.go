package integration_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
)

// publishing counts the databases whose messages are being published, and fails the test at the moment of excess.
type publishing struct {
	t    testing.TB
	most int

	mu  sync.Mutex
	now map[string]int
}

func (p *publishing) enter(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now[key]++; len(p.now) > p.most {
		p.t.Errorf("messages of %d databases are published at once, the limit is %d", len(p.now), p.most)
	}
}

func (p *publishing) leave(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now[key]--; p.now[key] == 0 {
		delete(p.now, key)
	}
}

// TestAHungPublisherTakesNoTurnsFromOthers: the publisher of one database hangs while only one forwarder may run.
// The others are published all the same, and so is what hung, when that is over.
func TestAHungPublisherTakesNoTurnsFromOthers(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	all := newTenants(t, "one", 3)
	broker := newFakeBroker()
	hangs, goOn := make(chan struct{}, 100), make(chan struct{})
	broker.answers(func(topic string, _ *message.Message) error {
		if topic == "hangs" {
			hangs <- struct{}{}
			<-goOn
		}
		return nil
	})
	var once sync.Once
	release := func() { once.Do(func() { close(goOn) }) }
	defer release()
	cfg := quickGroup()
	cfg.MaxActive, cfg.IdleAfter, cfg.Forwarder.CloseTimeout = 1, time.Hour, time.Minute
	runGroup(t, runFleet(t, fleet.Static(targetsOf(all...)...), fleet.Config{}, nil), broker, cfg, nil)
	all[0].publish(t, "hangs", "K", "hung-1", "hung-2")
	<-hangs
	for round := range 2 {
		for _, who := range all[1:] {
			payload := fmt.Sprint(who.Key, " in round ", round)
			who.publish(t, "events", "", payload)
			broker.arrives(t, payload)
		}
	}
	assert.Zero(t, broker.triedTimes("hung-2"), "calls for what is behind the one that hangs")
	release()
	broker.arrives(t, "hung-1", "hung-2")
	eventually(t, func() bool { return all[0].pendingIn(t) == 0 }, "all is settled")
	assert.Equal(t, []string{"hung-1", "hung-2"}, broker.payloads("K"))
}

// TestAGroupBeyondItsLimitsLosesNothing: more databases than forwarders that may run are written to all the time.
// One of them refuses what the Group writes for a while, and messages of two hang for longer than others wait. All
// is published, each key in order.
func TestAGroupBeyondItsLimitsLosesNothing(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	const maxActive, stuck = 2, 4
	all := append(newTenants(t, "shared", 8), newTenants(t, "alone", 0)...)
	broken := all[3]
	at := publishing{t: t, most: stuck * maxActive, now: map[string]int{}}
	broker := newFakeBroker()
	slow := make(chan struct{})
	var once sync.Once
	release := func() { once.Do(func() { close(slow) }) }
	defer release()
	var hung atomic.Int32
	broker.answers(func(_ string, msg *message.Message) error {
		key := msg.Metadata[outbox.MetadataKey]
		at.enter(key)
		defer at.leave(key)
		if (key == all[1].Key || key == all[8].Key) && hung.Add(1) <= 2 {
			<-slow
		}
		return nil
	})
	cfg := quickGroup()
	cfg.MaxActive, cfg.Forwarder.LeaseTTL = maxActive, 5*time.Second
	f := runFleet(t, fleet.Static(targetsOf(all...)...), fleet.Config{MaxConnsPerDSN: 4}, nil)
	log := newLogCapture(t)
	runGroup(t, f, broker, cfg, log)
	broken.exec(t, `CREATE FUNCTION s003.refuse() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN RAISE EXCEPTION ''not now''; END'`)
	broken.exec(t, `CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON s003.outbox_forwarders
		FOR EACH ROW EXECUTE FUNCTION s003.refuse()`)
	const rounds = 6
	var payloads []string
	for round := range rounds {
		for _, who := range all {
			some := []string{fmt.Sprint(who.Key, " ", round, " a"), fmt.Sprint(who.Key, " ", round, " b")}
			payloads = append(payloads, some...)
			if round%2 == 0 {
				who.publish(t, "events", who.Key, some...) // as another process does
				continue
			}
			db, err := f.Get(who.Key)
			require.NoError(t, err)
			mine := who.handle
			mine.db = db
			mine.publish(t, "events", who.Key, some...)
		}
		switch round {
		case 0: // it is not left alone for long then
			eventually(t, func() bool { return log.count("draining the outbox failed") > 0 }, "one refuses")
			broken.exec(t, "DROP TRIGGER refuse ON s003.outbox_forwarders")
		case 2:
			healthy := slices.DeleteFunc(slices.Clone(payloads), func(p string) bool {
				return slices.ContainsFunc([]tenant{all[1], all[3], all[8]}, func(who tenant) bool {
					return strings.HasPrefix(p, who.Key+" ")
				})
			})
			broker.arrives(t, healthy...)
		case 4:
			release()
		}
	}
	broker.arrives(t, payloads...)
	for _, who := range all {
		eventually(t, func() bool { return who.pendingIn(t) == 0 && who.asleep(t) }, "%s sleeps, all settled", who.Key)
		want := slices.DeleteFunc(slices.Clone(payloads), func(p string) bool { return !strings.HasPrefix(p, who.Key+" ") })
		assert.Equal(t, want, broker.payloads(who.Key), who.Key)
	}
}
