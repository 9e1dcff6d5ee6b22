package nats

import (
	"context"
	"fmt"
	"net"
	"slices"

	natsgo "github.com/nats-io/nats.go"

	outbox "github.com/millrace-go/watermill-outbox"
)

func (l *TopicReader) connect(ctx context.Context) (natsgo.JetStreamContext, error) {
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn == nil {
		var err error
		if conn, err = l.open(ctx); err != nil {
			return nil, err
		}
	}
	if l.life.Err() != nil {
		return nil, outbox.ErrClosed
	}
	js, err := conn.JetStream(slices.Concat([]natsgo.JSOpt{natsgo.MaxWait(answerTimeout)}, l.cfg.JetStream)...)
	if err != nil {
		return nil, fmt.Errorf("nats: JetStream: %w", err)
	}
	return js, nil
}

// open connects. Calls that do so at the same time each make a connection, and the first one is kept: a call that
// waits, waits for no longer than its own ctx.
func (l *TopicReader) open(ctx context.Context) (*natsgo.Conn, error) {
	if l.life.Err() != nil {
		return nil, outbox.ErrClosed
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	life, end := context.WithCancel(l.life)
	stay := context.AfterFunc(ctx, end)
	// An operator waits for the answer. The client's 2 s are short for a host that is busy.
	now := []natsgo.Option{natsgo.RetryOnFailedConnect(false), natsgo.Timeout(answerTimeout)}
	conn, err := natsgo.Connect(l.cfg.URL,
		slices.Concat(logging(l.logger), Options(), now, l.cfg.Options, []natsgo.Option{endingWith(life)})...)
	if !stay() && err == nil {
		conn.Close()
		err = ctx.Err()
	}
	switch {
	case err == nil:
	case l.life.Err() != nil:
		err = outbox.ErrClosed
	case ctx.Err() != nil:
		err = ctx.Err()
	}
	if err != nil {
		end()
		return nil, fmt.Errorf("nats: connect: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil || l.life.Err() != nil { // Close may be through already
		conn.Close()
		end()
	}
	if l.conn == nil {
		l.conn = conn
	}
	return l.conn, nil
}

// endingWith ends what is dialed with ctx, for the client's Connect takes none. A dialer of the user's stays.
func endingWith(ctx context.Context) natsgo.Option {
	return func(o *natsgo.Options) error {
		if o.CustomDialer != nil {
			return nil
		}
		of := net.Dialer{Timeout: o.Timeout}
		if o.Dialer != nil {
			of = *o.Dialer
		}
		o.CustomDialer = dialer{ctx, &of}
		return nil
	}
}

type dialer struct {
	ctx context.Context
	of  *net.Dialer
}

func (d dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.of.DialContext(d.ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &dialed{conn, context.AfterFunc(d.ctx, func() { _ = conn.Close() })}, nil
}

// dialed is forgotten when it is closed. A pointer, because the client compares connections.
type dialed struct {
	net.Conn
	forget func() bool
}

func (d *dialed) Close() error {
	d.forget()
	return d.Conn.Close()
}
