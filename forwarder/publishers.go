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

// verdict returns the verdict on an error of a topic's publisher. A timeout is not the publisher's error: a publisher
// that gives verdicts does not blame messages for a missing answer. The receiver of a Subscriber's message nacks it
// because of the message itself.
func (p *publishers) verdict(topic string, err error) Verdict {
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

// Verdict decides what happens to a message whose publish failed.
type Verdict int

const (
	// Unknown is the verdict on an unrecognised error. A circuit breaker decides: the attempt is counted, as with
	// Retry, until five different messages have failed without a success; then the topic pauses, as with Unavailable.
	// docs/guides/failures.md has the rule.
	Unknown Verdict = iota
	// Retry counts an attempt and retries the message after a backoff; its key is blocked meanwhile.
	Retry
	// Unavailable blames the broker: the message's topic pauses with a backoff, no attempt is counted, and one probe at
	// a time tests it.
	Unavailable
	// Permanent makes the message dead immediately. It is also the verdict on outbox.Poison.
	Permanent
)

// String returns the verdict in lower case, for logs and metrics.
func (v Verdict) String() string {
	switch v {
	case Retry:
		return "retry"
	case Unavailable:
		return "unavailable"
	case Permanent:
		return "permanent"
	}
	return "unknown"
}

// PublishError is an error of Publish with a verdict. The publishers of packages kafka, nats and amqp return it, and
// yours may too.
//
// The forwarder finds it as errors.As does, through decorators and wrapped errors. A verdict of Unknown does not hide a
// wrapped one. Of joined errors Unavailable counts before Retry, and Retry before Permanent.
type PublishError struct {
	Verdict Verdict
	Err     error // what went wrong
}

// Error returns the text of Err, or the name of the verdict if Err is nil.
func (e *PublishError) Error() string {
	switch {
	case e == nil:
		return Unknown.String()
	case e.Err == nil:
		return e.Verdict.String()
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *PublishError) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

// verdictIn returns the verdict that an error carries: the outermost, and of joined errors the mildest. said is false
// if it carries none.
func verdictIn(err error) (v Verdict, said bool) {
	if e, ok := err.(*PublishError); ok && e != nil {
		if e.Verdict != Unknown {
			return e.Verdict, true
		}
		v, _ = verdictIn(e.Err)
		return v, true
	}
	if err == outbox.ErrPoison {
		return Permanent, true
	}
	if e, ok := err.(interface{ As(target any) bool }); ok {
		var judged *PublishError
		if e.As(&judged) && judged != nil {
			return judged.Verdict, true
		}
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return verdictIn(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			its, facts := verdictIn(one)
			said = said || facts
			if milder(its, v) {
				v = its
			}
		}
	}
	return v, said
}

// milder reports whether a verdict's effect is easier to undo than another's. For example, a message must not be dead
// because a broker was away.
func milder(a, b Verdict) bool {
	rank := map[Verdict]int{Unavailable: 3, Retry: 2, Permanent: 1}
	return rank[a] > rank[b]
}

// WithVerdicts returns a publisher whose errors carry the verdict of classify, for a publisher whose own errors carry
// none. Unlike Config.Classify it affects only this publisher, and not others of Config.Routes. For Unknown the
// publisher's error is returned unchanged.
//
//	pub := forwarder.WithVerdicts(redisPublisher, redis.Classify)
func WithVerdicts(pub message.Publisher, classify func(error) Verdict) message.Publisher {
	return &classified{pub, classify}
}

type classified struct {
	message.Publisher
	classify func(error) Verdict
}

func (c *classified) Publish(topic string, msgs ...*message.Message) error {
	err := c.Publisher.Publish(topic, msgs...)
	if err == nil {
		return nil
	}
	if v := c.classify(err); v != Unknown {
		return &PublishError{Verdict: v, Err: err}
	}
	return err
}
