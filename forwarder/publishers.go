package forwarder

import (
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// publishers maps topics to publishers. It is safe for concurrent use; nil stands for the receiver of a Subscriber.
type publishers struct {
	classify    func(error) Verdict // Config.Classify; may be nil
	routes      map[string]int      // index of each publisher of Config.Routes; 0 is the publisher of New
	all         []message.Publisher
	connections []connection  // by index: whether it is connected; nil if it cannot report that
	knows       []atomic.Bool // by index: it has returned an error with a verdict
	blind       atomic.Bool   // one of them has returned an error without a verdict, and has no link
}

func newPublishers(pub message.Publisher, cfg Config) *publishers {
	p := &publishers{classify: cfg.Classify, routes: make(map[string]int, len(cfg.Routes)), all: []message.Publisher{pub}}
	for topic, to := range cfg.Routes {
		p.routes[topic] = p.numberOf(to)
	}
	p.knows = make([]atomic.Bool, len(p.all))
	for _, pub := range p.all {
		p.connections = append(p.connections, connectionOf(pub))
	}
	return p
}

// numberOf returns the index of a publisher, adding it if it is new.
func (p *publishers) numberOf(pub message.Publisher) int {
	for i, known := range p.all {
		if samePublisher(known, pub) {
			return i
		}
	}
	p.all = append(p.all, pub)
	return len(p.all) - 1
}

// samePublisher reports whether two publishers are the same value, if they can be compared.
func samePublisher(a, b message.Publisher) bool {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	return va.IsValid() && vb.IsValid() && va.Comparable() && vb.Comparable() && a == b
}

// number returns the index of a topic's publisher.
func (p *publishers) number(topic string) int {
	if p == nil {
		return 0
	}
	return p.routes[topic]
}

// publish sends a message of a topic. If the publisher is not connected, a failed message was never sent, so its broker
// is to blame. The connection is checked before the call and not after: a message is at fault itself if the broker
// refuses it by closing the connection.
func (p *publishers) publish(topic string, msg *message.Message) error {
	n := p.number(topic)
	conn := p.connections[n]
	dedicated := conn != nil && !conn.IsConnected()
	err := p.all[n].Publish(topic, msg)
	if err == nil {
		return nil
	}
	switch _, said := verdictIn(err); {
	case said:
		p.knows[n].Store(true) // even if it comes too late to count
	case dedicated:
		err = &PublishError{Unavailable, err}
	}
	return err
}

// judge returns the verdict on an error of a topic's publisher. A timeout is not the publisher's error: a publisher
// that gives verdicts does not blame messages for a missing answer. The receiver of a Subscriber's message nacks it
// because of the message itself.
func (p *publishers) judge(topic string, err error) Verdict {
	if p == nil {
		return Retry
	}
	if p.classify != nil {
		if v := p.classify(err); v != Unknown {
			return v
		}
	}
	v, said := verdictIn(err)
	switch {
	case said:
		return v
	case errors.Is(err, ErrPublishTimeout):
		if p.knows[p.number(topic)].Load() {
			return Unavailable
		}
	case p.connections[p.number(topic)] == nil:
		p.blind.Store(true)
	}
	return v
}

// connection is implemented by publishers that know whether they are connected, such as those of watermill-amqp.
type connection interface{ IsConnected() bool }

// connectionOf returns the link of a publisher, or nil if it has none. WithVerdicts is the only decorator that it looks
// behind, because others may replace the publisher that they wrap.
func connectionOf(pub message.Publisher) connection {
	if c, ok := pub.(*classified); ok {
		return connectionOf(c.Publisher)
	}
	l, _ := pub.(connection)
	return l
}

// maxDecorators is how many nested decorators are unwrapped.
const maxDecorators = 16

// refuseLoop returns errOwnPublisher if a publisher writes to the outbox that the forwarder reads: each message would
// loop forever.
func refuseLoop(db *outbox.DB, cfg Config, pub message.Publisher) error {
	if (*core.DB)(db).Check() != nil {
		return nil // newEngine reports it
	}
	name := (*core.DB)(db).Tables().OutboxName()
	check := func(what string, pub message.Publisher) error {
		if own := writer(reflect.ValueOf(pub), maxDecorators); own != nil &&
			(*core.Publisher)(own).DB().SameOutbox((*core.DB)(db)) {
			return fmt.Errorf("%w: %s writes to %s", errOwnPublisher, what, name)
		}
		return nil
	}
	if err := check("the publisher", pub); err != nil {
		return err
	}
	for topic, to := range cfg.Routes {
		if err := check(fmt.Sprintf("Config.Routes[%q]", topic), to); err != nil {
			return err
		}
	}
	return nil
}

var publisherType = reflect.TypeFor[message.Publisher]()

// writer finds the outbox's publisher behind decorators.
func writer(v reflect.Value, depth int) (found *outbox.Publisher) {
	decorated(v, depth, func(v reflect.Value) bool {
		if v.Kind() == reflect.Pointer && v.Type() == reflect.TypeFor[*outbox.Publisher]() && !v.IsNil() {
			found = (*outbox.Publisher)(v.UnsafePointer())
		}
		return found != nil
	})
	return found
}

// decorated calls isIt for a publisher and for those that it decorates, found in its fields, until isIt returns true.
func decorated(v reflect.Value, depth int, isIt func(reflect.Value) bool) bool {
	for v.Kind() == reflect.Interface && !v.IsNil() {
		v = v.Elem()
	}
	if v.IsValid() && isIt(v) {
		return true
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if depth == 0 || v.Kind() != reflect.Struct {
		return false
	}
	for i := range v.NumField() {
		if v.Type().Field(i).Type.Implements(publisherType) && decorated(v.Field(i), depth-1, isIt) {
			return true
		}
	}
	return false
}
