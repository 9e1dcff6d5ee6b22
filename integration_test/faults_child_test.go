//go:build unix

package integration_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
)

// childConfig configures a worker process.
type childConfig struct {
	Name     string
	URL      string
	Handle   string // pgx, sql-pgx, sql-pq or pgbouncer
	Handlers bool   // also run a Router with the handler
	LeaseTTL time.Duration
	Forget   bool // published messages are deleted after a minute
	// With pgx, delays each statement by between half of it and all of it.
	Slow   time.Duration
	Scope  string
	Topics []string // of the forwarder; empty = all
}

// child is a worker process: a Router that gets its orders from the parent, and a forwarder whose broker is the parent.
// It reports every step to the parent, and dies with it.
type child struct {
	cfg    childConfig
	parent *rpc.Client
	shop   shop
}

func runChild(settings []byte) error {
	c := &child{}
	if err := json.Unmarshal(settings, &c.cfg); err != nil {
		return err
	}
	conn, err := net.FileConn(os.NewFile(3, "parent"))
	if err != nil {
		return err
	}
	c.parent = rpc.NewClient(conn)
	db, err := openChildHandle(c.cfg, childObserver{c})
	if err != nil {
		return err
	}
	if c.shop, err = newShop(db); err != nil {
		return err
	}
	logger := watermill.NewStdLogger(false, false)
	retention := time.Duration(0)
	if c.cfg.Forget {
		retention = time.Minute
	}
	fwd, err := forwarder.New(db, childPublisher{c}, forwarder.Config{
		Retention:     retention,
		Name:          c.cfg.Name,
		Scope:         c.cfg.Scope,
		Topics:        c.cfg.Topics,
		LeaseTTL:      c.cfg.LeaseTTL,
		PollInterval:  50 * time.Millisecond,
		Classify:      classifyAnswer,
		Backoff:       outbox.Backoff{Initial: 50 * time.Millisecond, Max: 500 * time.Millisecond},
		OutageBackoff: outbox.Backoff{Initial: 50 * time.Millisecond, Max: 300 * time.Millisecond},
	}, logger)
	if err != nil {
		return err
	}
	ended := make(chan error, 2)
	var toClose []io.Closer
	run := func(part io.Closer, run func(context.Context) error, running <-chan struct{}) error {
		toClose = append(toClose, part)
		go func() { ended <- run(context.Background()) }()
		select {
		case <-running:
			return nil
		case err := <-ended:
			return fmt.Errorf("%T ended immediately: %w", part, err)
		}
	}
	if c.cfg.Handlers {
		router, err := c.router(logger)
		if err != nil {
			return err
		}
		if err := run(router, router.Run, router.Running()); err != nil {
			return err
		}
	}
	if err := run(fwd, fwd.Run, fwd.Running()); err != nil {
		return err
	}
	c.at("running", 1)
	c.call("Parent.UntilStop", 0)
	var errs []error
	for _, part := range toClose {
		errs = append(errs, part.Close(), <-ended)
	}
	return errors.Join(errs...)
}

func openChildHandle(cfg childConfig, observer observe.Observer) (*outbox.DB, error) {
	dbConfig := outbox.DBConfig{Observers: []observe.Observer{observer}}
	if cfg.Handle == "pgx" || cfg.Handle == "pgbouncer" {
		poolConfig, err := pgxpool.ParseConfig(cfg.URL + "&pool_max_conns=8")
		if err != nil {
			return nil, err
		}
		if dial := poolConfig.ConnConfig.DialFunc; cfg.Slow > 0 {
			poolConfig.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				return unevenConn{conn, cfg.Slow}, err
			}
		}
		pool, err := pgxpool.NewWithConfig(context.Background(), poolConfig)
		if err != nil {
			return nil, err
		}
		return outbox.FromPgx(pool, dbConfig, nil)
	}
	db, err := sql.Open(map[string]string{"sql-pgx": "pgx", "sql-pq": "postgres"}[cfg.Handle], cfg.URL)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(9)
	return outbox.FromSQL(db, dbConfig, nil)
}

func (c *child) router(logger watermill.LoggerAdapter) (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, logger)
	if err != nil {
		return nil, err
	}
	stack, err := middleware.Stack(c.shop.pub, middleware.StackConfig{
		Service:      "shop",
		ErrorHandler: middleware.ErrorHandlerConfig{Backoff: outbox.Backoff{Initial: -1}},
		Tx: middleware.TxConfig{OnBegin: func(ctx context.Context, _ *message.Message) error {
			q, err := (*core.DB)(c.shop.db).Tx(ctx)
			if err == nil {
				_, err = q.Exec(ctx, "select 1") // with pgx, BEGIN travels with the first statement
			}
			c.at("begun", 1)
			return err
		}},
	}, logger)
	if err != nil {
		return nil, err
	}
	if len(stack) != 4 {
		return nil, fmt.Errorf("Stack has %d parts, not ErrorHandler, Tx, Inbox, Outbox", len(stack))
	}
	router.AddMiddleware(
		c.step("committed", "dead"), stack[0],
		c.step("", "rolled back"), stack[1],
		c.step("captured", ""), stack[2], stack[3],
	)
	router.AddHandler(consumer, "orders", childSubscriber{c}, eventsTopic, c.shop.pub, c.handle)
	return router, nil
}

// step is a middleware that reports to the parent when the inner ones are done: good if the message was booked,
// otherwise bad.
func (c *child) step(good, bad string) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			name := good
			if err != nil || msg.Metadata.Get("kind") == kindPoison {
				name = bad
			}
			if name != "" {
				c.at(name, 1)
			}
			return produced, err
		}
	}
}

func (c *child) handle(msg *message.Message) ([]*message.Message, error) {
	c.at("claimed", 1)
	produced, err := c.shop.book(msg.Context(), msg.UUID, string(msg.Payload))
	if err != nil {
		return nil, err
	}
	c.at("written", 1)
	switch msg.Metadata.Get("kind") {
	case kindPoison:
		return produced, outbox.Poison(errUndone)
	case kindFailing:
		return produced, errUndone
	}
	return produced, nil
}

// at reports to the parent that a step was reached, and does not return if the parent ends this process there.
func (c *child) at(step string, n int) { c.call("Parent.At", Passing{step, n}) }

func (c *child) call(method string, arg any) {
	var none int
	if err := c.parent.Call(method, arg, &none); err != nil {
		os.Exit(3) // the parent is gone
	}
}

// childSubscriber gets orders from the parent.
type childSubscriber struct{ *child }

const childConcurrency = 4

func (s childSubscriber) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	messages := make(chan *message.Message)
	var taking sync.WaitGroup
	for range childConcurrency {
		taking.Go(func() {
			for {
				var o Order
				if err := s.parent.Call("Parent.Take", 0, &o); err != nil {
					return // stopping
				}
				msg := message.NewMessage(o.ID, message.Payload(o.Key))
				msg.Metadata.Set("kind", o.Kind)
				messages <- msg
				select {
				case <-msg.Acked():
					s.call("Parent.Ack", o)
				case <-msg.Nacked():
					s.call("Parent.Nack", o)
				}
			}
		})
	}
	go func() {
		taking.Wait()
		close(messages)
	}()
	return messages, nil
}

func (childSubscriber) Close() error { return nil } // the parent ends Take

// childPublisher hands messages to the parent.
type childPublisher struct{ *child }

func (p childPublisher) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		p.at("publishing", 1)
		var none int
		err := p.parent.Call("Parent.Publish", Copy{
			UUID: msg.UUID, Topic: topic, Key: msg.Metadata.Get(outbox.MetadataKey), Payload: msg.Payload,
		}, &none)
		if _, answered := err.(rpc.ServerError); err != nil && !answered {
			os.Exit(3)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (childPublisher) Close() error { return nil }

// classifyAnswer returns the verdict on the parent's answer.
func classifyAnswer(err error) forwarder.Verdict {
	if strings.HasPrefix(err.Error(), "unavailable") {
		return forwarder.Unavailable
	}
	return forwarder.Retry
}

type childObserver struct{ *child }

func (childObserver) PublishStart(ctx context.Context, _ observe.PublishStart) context.Context {
	return ctx
}

func (o childObserver) PublishEnd(_ context.Context, end observe.PublishEnd) {
	if end.Err == nil {
		o.at("published", 1)
	}
}

func (o childObserver) ReadEnd(_ context.Context, end meter.ReadEnd) {
	if end.Rows > 0 {
		o.at("read", end.Rows)
	}
}

func (o childObserver) SettleEnd(_ context.Context, end meter.SettleEnd) {
	switch {
	case end.Err != nil:
	case end.Failed > 0:
		o.at("failed", end.Failed)
	case end.Done > 0:
		o.at("settled", end.Done)
	}
}

func (o childObserver) LanesOwned(_ context.Context, owned meter.LanesOwned) {
	if owned.Lanes > 0 {
		o.at("lanes", owned.Lanes)
	}
}

func (childObserver) CleanEnd(context.Context, meter.CleanEnd) {}

var (
	_ message.Subscriber      = childSubscriber{}
	_ message.Publisher       = childPublisher{}
	_ observe.PublishObserver = childObserver{}
	_ meter.ForwarderObserver = childObserver{}
)
