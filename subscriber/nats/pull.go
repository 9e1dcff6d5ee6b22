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
	// afterError keeps a pull that fails at once from being repeated in a tight loop.
	afterError = 200 * time.Millisecond
)

// pull is one request for messages.
type pull struct {
	sent time.Time // before that the server has not got it
	err  error     // at its end
	keep bool      // it asked for nothing, and only says that the owner lives
}

// pullMessages sends the reader what one pull brings, and then the pull itself.
func (r *reader) pullMessages(batch int) {
	p := pull{sent: time.Now()}
	wait := r.cfg.pullWait()
	got, err := r.from.consumer.Fetch(batch, jetstream.FetchMaxWait(wait), jetstream.FetchHeartbeat(wait/3),
		jetstream.FetchPriorityGroup(group))
	if err == nil {
		for msg := range got.Messages() {
			select {
			case r.in <- arrival{msg, p.sent}:
			case <-r.life.Done():
				return
			}
		}
		err = got.Error()
	}
	r.endPull(p, err)
}

// Cause: the consumer has another leader, or is gone.
// Cure: none is needed: it is asked again.
var errRefused = errors.New("the owner's sign of life was refused by JetStream")

// keepAlive is a pull of the owner's that brings no message, as none is smaller than a byte.
func (r *reader) keepAlive(pin string) {
	p := pull{sent: time.Now(), keep: true}
	wait := r.cfg.pullWait()
	request, err := json.Marshal(map[string]any{
		"batch": 1, "max_bytes": 1, "expires": wait.Nanoseconds(), "group": group, "id": pin,
	})
	if err == nil {
		var answer *natsgo.Msg
		ctx, cancel := context.WithTimeout(r.life, wait+answerTimeout)
		defer cancel()
		if answer, err = r.conn.RequestWithContext(ctx, r.from.next, request); err == nil {
			switch status, why := answer.Header.Get("Status"), answer.Header.Get("Description"); {
			case status == "423":
				err = jetstream.ErrPinIDMismatch
			case status == "408", status == "409" && strings.Contains(why, "Message Size"):
				core.Pause(r.life, time.Until(p.sent.Add(wait))) // that a message is too large is said at once
			default:
				err = fmt.Errorf("%w: status %s %s", errRefused, status, why)
			}
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

// answer is what the server says of the consumer.
type answer struct {
	info *jetstream.ConsumerInfo
	err  error
	idle bool // no pull was under way when it was asked
}

// ask asks about the consumer, unless that is under way.
func (r *reader) ask() {
	if r.asked {
		return
	}
	r.asked = true
	idle := !r.pulling
	r.asking.Go(func() {
		ctx, cancel := context.WithTimeout(r.life, answerTimeout)
		defer cancel()
		a := answer{idle: idle}
		if a.info, a.err = r.from.consumer.Info(ctx); a.err != nil {
			core.Pause(r.life, afterError)
		}
		select {
		case r.answers <- a:
		case <-r.life.Done():
		}
	})
}
