package forwarder

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/testing/modeldb"
)

// Due delayed messages that wait behind a failed message of their key cost few reads.
func TestDelayedMessagesOfABlockedKey(t *testing.T) {
	const (
		rest = 2 * time.Second
		poll = 500 * time.Millisecond // the default of PollInterval
	)
	for _, c := range []struct {
		name          string
		keys, delayed int
		fails         func(n, attempt int) bool // the nth message of its key
	}{
		{"whose first message fails", 100, 20, func(n, _ int) bool { return n == 0 }},
		{"whose messages all fail once", 100, 20, func(_, attempt int) bool { return attempt == 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				b := &bubble{t: t, ctx: ctx, began: time.Now(), topics: 1, server: newBubbleServer(), broker: &bubbleBroker{}}
				b.servers = []*bubbleServer{b.server}
				b.server.transaction(func(tx *modeldb.Tx) {
					for k := range c.keys {
						key := "key-" + strconv.Itoa(k)
						insertMessage(tx, "topic-0", key, 0)
						for n := 1; n <= c.delayed; n++ {
							tx.Insert(modeldb.Row{
								UUID: key + "/" + strconv.Itoa(n), Topic: "topic-0", Key: key, Lane: laneOf(key),
								State: modeldb.State{Due: time.Now().Add(time.Second).UnixMicro()},
							})
						}
					}
				}, func() {})
				var mu sync.Mutex
				attempts := map[string]int{}
				b.broker.set(func(_, uuid string) error {
					mu.Lock()
					defer mu.Unlock()
					attempts[uuid]++
					_, number, _ := strings.Cut(uuid, "/")
					if n, _ := strconv.Atoi(number); c.fails(n, attempts[uuid]) {
						return &PublishError{Verdict: Retry, Err: errors.New("refused")}
					}
					return nil
				})
				b.forward(0, 0)
				f := b.forwarders[0]
				time.Sleep(3 * time.Second)
				before := b.server.readsOfDue()
				time.Sleep(rest)
				if n := b.server.readsOfDue() - before; n > 2*int(rest/poll) {
					t.Errorf("%d reads of due messages in %s", n, rest)
				}
				f.stop()
				f.pool.stragglers.Wait()
			})
		})
	}
}
