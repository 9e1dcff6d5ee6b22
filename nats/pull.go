package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

const (
	maxPull = 256
	// afterError is the wait after a pull that fails immediately, which prevents a tight loop.
	afterError = 200 * time.Millisecond
)

// pull is one request for messages.
type pull struct {
	sent time.Time // the server received it no earlier
	err  error     // its end
	keep bool      // requests no message, only shows that the owner is alive
}

// lateReply is how long after its expiry, and after its last message, a pull without a reply is abandoned.
const lateReply = time.Second

// pullMessages sends the messages of one pull to the reader, and then the pull itself.
func (r *reader) pullMessages(batch int, wait time.Duration, pin string) {
	p := pull{sent: time.Now()}
	r.endPull(p, r.fetch(p, batch, wait, pin))
}

// fetch replaces the Fetch of nats.go, which trusts headers that a producer can set too: it would mistake a message for
// a status of the server, or another process for the owner.
func (r *reader) fetch(p pull, batch int, wait time.Duration, pin string) error {
	inbox := r.conn.NewInbox()
	sub, err := r.conn.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	defer context.AfterFunc(r.life, func() { _ = sub.Unsubscribe() })()
	if err := sub.SetPendingLimits(-1, -1); err != nil { // the batch is the limit
		return err
	}
	if err := r.conn.PublishRequest(r.from.next, inbox, request(batch, 0, wait, pin)); err != nil {
		return err
	}
	end := time.Now().Add(wait + lateReply)
	for got := 0; got < batch; {
		msg, err := sub.NextMsg(time.Until(end))
		if err != nil {
			return err
		}
		if !delivered(msg) {
			if over, err := status(msg); over {
				return err
			}
			continue
		}
		got++
		select {
		case r.in <- arrival{msg, p.sent}:
		case <-r.life.Done():
			return nil
		}
		if more := time.Now().Add(lateReply); more.After(end) { // JetStream redelivers a dropped message only after AckWait
			end = more
		}
	}
	return nil
}

// request returns the body of a pull. Without a pin the server sends nothing while another process is the owner.
func request(batch, maxBytes int, wait time.Duration, pin string) []byte {
	made, _ := json.Marshal(struct { // cannot fail
		Batch    int    `json:"batch"`
		MaxBytes int    `json:"max_bytes,omitempty"`
		Expires  int64  `json:"expires"`
		Group    string `json:"group"`
		Pin      string `json:"id,omitempty"`
	}{batch, maxBytes, wait.Nanoseconds(), group, pin})
	return made
}

// delivered reports whether msg is a message of the stream: only the server can set the subject for its ack.
func delivered(msg *natsgo.Msg) bool { return strings.HasPrefix(msg.Reply, "$JS.ACK.") }

// Cause: another leader, a deleted consumer, or a limit.
// Cure: retried.
var errRefused = errors.New("a pull was refused by JetStream")

// status reports whether a pull has ended, and its error.
func status(msg *natsgo.Msg) (over bool, err error) {
	switch code, why := msg.Header.Get("Status"), msg.Header.Get("Description"); {
	case code == "100":
		return false, nil
	case code == "404", code == "408", code == "409" && strings.Contains(why, "Message Size"):
		return true, nil
	case code == "423":
		return true, jetstream.ErrPinIDMismatch
	default:
		return true, fmt.Errorf("%w: status %s %s", errRefused, code, why)
	}
}

// keepAlive is a pull by the owner that returns no message, because no message fits into its limit of one byte.
func (r *reader) keepAlive(wait time.Duration, pin string) {
	p := pull{sent: time.Now(), keep: true}
	ctx, cancel := context.WithTimeout(r.life, wait+consumerTimeout)
	defer cancel()
	reply, err := r.conn.RequestWithContext(ctx, r.from.next, request(1, 1, wait, pin))
	if err == nil {
		if _, err = status(reply); err == nil {
			core.Pause(r.life, time.Until(p.sent.Add(wait))) // the status "message too large" arrives immediately
		}
	}
	r.endPull(p, err)
}

func (r *reader) endPull(p pull, err error) {
	if p.err = err; err != nil && !errors.Is(err, jetstream.ErrPinIDMismatch) {
		core.Pause(r.life, afterError)
	}
	select {
	case r.pulled <- p:
	case <-r.life.Done():
	}
}

// description is the server's description of the consumer.
type description struct {
	requestedAt time.Time
	info        *jetstream.ConsumerInfo
	err         error
	idle        bool // no pull was in flight when it was requested
}

// describe requests the description of the consumer, unless a request is in flight.
func (r *reader) describe() {
	if r.describing {
		return
	}
	r.describing = true
	idle := !r.pulling
	r.requests.Go(func() {
		ctx, cancel := context.WithTimeout(r.life, consumerTimeout)
		defer cancel()
		a := description{requestedAt: time.Now(), idle: idle}
		if a.info, a.err = r.from.consumer.Info(ctx); a.err != nil {
			core.Pause(r.life, afterError)
		}
		select {
		case r.descriptions <- a:
		case <-r.life.Done():
		}
	})
}
