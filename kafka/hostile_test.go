package kafka

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
)

// The channel is closed even if the Unmarshaler hangs, and the message that it finally returns reaches no handler.
func TestTheEndDoesNotWaitForTheUnmarshaler(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	bubble(t, func(cfg *SubscriberConfig) {
		cfg.Unmarshaler = unmarshalFunc(func(msg *sarama.ConsumerMessage) (*message.Message, error) {
			<-stuck
			return message.NewMessage("", msg.Value), nil
		})
	}, func(w *world) {
		stuck = make(chan struct{}) // of the bubble
		c := newClaim(0, 0)
		ended := w.claim(c)
		c.send(0, "k", "slow")
		w.lose()
		w.close()
		<-ended // abandoned
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			w.end()
		}()
		over := isClosed(closed)
		close(stuck)
		if !over {
			t.Error("the end waits for the Unmarshaler")
		}
		if _, open := <-w.sub.deliverer.Messages(); open {
			t.Error("a message was delivered after its partition was revoked")
		}
	})
}

// A partition whose Key hangs does not delay deliveries that the Router has yet to receive.
func TestTheEndDoesNotWaitForKey(t *testing.T) {
	t.Parallel()
	stuck := sync.OnceValue(func() chan struct{} { return make(chan struct{}) })
	bubble(t, func(cfg *SubscriberConfig) {
		cfg.Key = func(msg *sarama.ConsumerMessage) []byte {
			if string(msg.Value) == "bad" {
				<-stuck()
			}
			return msg.Key
		}
	}, func(w *world) {
		stuck()
		c := newClaim(0, 0)
		w.claim(c)
		c.send(0, "k", "waits to be received")
		synctest.Wait()
		c.send(1, "k", "bad")
		w.close()
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			w.end()
		}()
		over := isClosed(closed)
		close(stuck())
		if time.Sleep(time.Minute); !over {
			t.Error("the end waits for Key")
		}
	})
}

type unmarshalFunc func(*sarama.ConsumerMessage) (*message.Message, error)

func (f unmarshalFunc) Unmarshal(msg *sarama.ConsumerMessage) (*message.Message, error) {
	return f(msg)
}
