package outboxtest

import (
	"cmp"
	"errors"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
)

// Publisher is a message.Publisher that replaces a broker's. It records published messages. The zero value is ready for
// use; it is safe for concurrent use.
type Publisher struct {
	mu      sync.Mutex
	list    []Message
	fails   int // number of calls that will fail; -1 = all
	err     error
	blocked chan struct{} // closed by release; nil = not blocked
	over    chan struct{} // closed by Close; nil before a call waits for that
	closed  bool
}

var (
	_ message.Publisher = (*Publisher)(nil)

	errFailed = errors.New("outboxtest: the publisher fails, as the test configured it")
)

// Publish records copies of the messages, all or none. It returns the error of Fail, outbox.ErrClosed after Close, and
// the error of a message's context that ends while Block holds the call.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	for {
		p.mu.Lock()
		if blocked := p.blocked; blocked != nil && !p.closed && len(msgs) > 0 {
			over := p.ended()
			p.mu.Unlock()
			select {
			case <-blocked:
			case <-over:
			case <-msgs[0].Context().Done():
				return msgs[0].Context().Err()
			}
			continue
		}
		defer p.mu.Unlock()
		return p.publish(topic, msgs)
	}
}

// publish is called under mu.
func (p *Publisher) publish(topic string, msgs []*message.Message) error {
	if p.closed {
		return outbox.ErrClosed
	}
	if p.fails != 0 {
		if p.fails > 0 {
			p.fails--
		}
		return p.err
	}
	for _, msg := range msgs {
		kept := msg.Copy()
		kept.Payload = slices.Clone(msg.Payload)
		p.list = append(p.list, Message{topic, kept})
	}
	return nil
}

// ended returns a channel that Close closes. It is called under mu.
func (p *Publisher) ended() <-chan struct{} {
	if p.over == nil {
		p.over = make(chan struct{})
	}
	return p.over
}

// Messages returns the published messages, oldest first.
func (p *Publisher) Messages() []Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.list)
}

// Fail makes the next n calls of Publish return err and record nothing; -1 = all calls, 0 = none. It replaces earlier
// settings. A nil err is replaced by a default error.
func (p *Publisher) Fail(n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fails, p.err = n, cmp.Or(err, errFailed)
}

// Block holds all calls of Publish until the returned function is called, which may be called several times. A held
// call counts for Fail when it continues. During a block, Block returns a function that ends the same block.
func (p *Publisher) Block() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.blocked == nil {
		p.blocked = make(chan struct{})
	}
	blocked := p.blocked
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.blocked == blocked {
			close(blocked)
			p.blocked = nil
		}
	}
}

// Close ends held calls with outbox.ErrClosed and returns nil. It may be called several times.
func (p *Publisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closed = true
		if p.over != nil {
			close(p.over)
		}
	}
	return nil
}
