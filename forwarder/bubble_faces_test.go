package forwarder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// face is a part of this package that runs in a bubble.
type face struct {
	databases, topics int
	processes         int
	start             func(b *bubble, number, atOnce int) // starts a process
}

func forwarders(n int) face  { return face{1, 2, n, (*bubble).forward} }
func subscribers(n int) face { return face{1, 1, n, (*bubble).subscribe} } // which keep one topic in order
func groupOf(n int) face     { return face{n, 2, 1, (*bubble).group} }

// bubbleForwarder is the forwarder of one database.
type bubbleForwarder struct {
	pool  *bubblePool
	db    *outbox.DB
	drain func() error
	stop  func() // and waits for it
}

// on creates the forwarder of one database.
func (b *bubble) on(server *bubbleServer, number int) *bubbleForwarder {
	pool := newBubblePool(b.t, server, number, b.fault)
	db, err := core.NewDB(pool, core.Config{DisableNotify: true}, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	f := &bubbleForwarder{pool: pool, db: (*outbox.DB)(db)}
	b.forwarders = append(b.forwarders, f)
	return f
}

func unchecked(context.Context, *outbox.DB) error { return nil }

// supervise runs a process and restarts it if its start fails. It calls failed before each restart.
func (b *bubble) supervise(run func(context.Context) error, failed func()) (stop func()) {
	ctx, cancel := context.WithCancel(b.ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			err := run(ctx)
			if err == nil || ctx.Err() != nil {
				return
			}
			if b.fault.kind == 0 {
				b.t.Error("Run:", err)
			}
			failed()
			time.Sleep(time.Second)
		}
	}()
	return sync.OnceFunc(func() {
		cancel()
		begun := time.Now()
		<-over
		if took, most := time.Since(begun), 30*time.Second+2*queryTimeout+leaveTimeout; took > most {
			b.t.Errorf("Run returned after %s, want at most %s", took, most)
		}
	})
}

// forward starts a Forwarder.
func (b *bubble) forward(number, atOnce int) {
	bf := b.on(b.server, number)
	made := func() *Forwarder {
		f, err := New(bf.db, &bubblePublisher{b.broker, bf.pool}, Config{
			Name: fmt.Sprint(number), Concurrency: atOnce, check: unchecked,
		}, nil)
		if err != nil {
			panic(err)
		}
		return f
	}
	first := made()
	next := first
	runs, failed := context.WithCancel(b.ctx)                         // ends when the first cannot start
	bf.drain = func() error { return first.engine.drain(runs, true) } // concurrently with Run
	bf.stop = b.supervise(func(ctx context.Context) error {
		f := next
		next = made()
		return f.Run(ctx)
	}, failed)
}

var errSubscriptionEnded = errors.New("the subscription ended")

// subscribe starts a program that handles a Subscriber's messages one after another.
func (b *bubble) subscribe(number, atOnce int) {
	bf := b.on(b.server, number)
	handler := &bubblePublisher{b.broker, bf.pool}
	bf.stop = b.supervise(func(ctx context.Context) error {
		s, err := NewSubscriber(bf.db, SubscriberConfig{
			Forwarder: Config{Name: fmt.Sprint(number), Concurrency: atOnce},
		}, nil)
		if err != nil {
			panic(err)
		}
		s.cfg.check = unchecked
		messages, err := s.Subscribe(ctx, "topic-0")
		if err != nil {
			return err
		}
		for msg := range messages {
			if handler.Publish("topic-0", msg) == nil {
				msg.Ack()
			} else {
				msg.Nack()
			}
		}
		return errors.Join(errSubscriptionEnded, s.Close())
	}, func() {})
}

// group starts a Group of all databases, which soon go idle.
func (b *bubble) group(_, _ int) { b.groupWith(Config{}) }

func (b *bubble) groupWith(cfg Config) {
	cfg.check = unchecked
	all, targets := map[string]*bubbleForwarder{}, []fleet.Target(nil)
	for i, server := range b.servers {
		key := fmt.Sprint("database-", i)
		all[key] = b.on(server, i)
		targets = append(targets, fleet.Target{Key: key, DSN: key})
	}
	databases, err := fleet.New(fleet.Static(targets...), fleet.Config{
		Open: func(_ context.Context, t fleet.Target) (*outbox.DB, func(), error) { return all[t.Key].db, nil, nil },
	}, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	g, err := NewGroup(databases, nil, GroupConfig{
		Forwarder: cfg, IdleAfter: 300 * time.Millisecond, MaxActive: 1,
		Configure: func(_ context.Context, key string, _ *Config, pub *message.Publisher) error {
			*pub = &bubblePublisher{b.broker, all[key].pool}
			return nil
		},
	}, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	stop := b.supervise(func(ctx context.Context) error {
		known, forget := context.WithCancel(context.WithoutCancel(ctx))
		ended := make(chan error, 1)
		go func() { ended <- databases.Run(known) }()
		err := g.Run(ctx)
		forget()
		return errors.Join(err, <-ended)
	}, func() {})
	drain := func() error {
		<-g.Running() // otherwise Drain would run the group itself
		return g.Drain(b.ctx)
	}
	for _, f := range all {
		f.stop, f.drain = stop, drain
	}
}
