package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	wforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib"
)

const (
	watermillTopic = "forwarder"
	watermillBatch = 1000
)

var watermillSchema = wsql.DefaultPostgreSQLSchema{
	SubscribeBatchSize:  watermillBatch,
	GeneratePayloadType: func(string) string { return "BYTEA" },
}

// watermillForwarder measures Watermill's forwarder on watermill-sql. Its messages were written by its own publisher,
// in its envelope.
func (b *bench) watermillForwarder(n int, to func(n int) (*sink, error)) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		d, err := b.newDatabase(ctx)
		if err != nil {
			return measured{}, err
		}
		defer d.drop()
		db, err := sql.Open("pgx", d.url)
		if err != nil {
			return measured{}, err
		}
		defer db.Close()
		sub, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
			SchemaAdapter: watermillSchema, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
		}, nil)
		if err != nil {
			return measured{}, err
		}
		defer sub.Close()
		if err := sub.SubscribeInitialize(watermillTopic); err != nil {
			return measured{}, err
		}
		if err := loadWatermill(db, n); err != nil {
			return measured{}, err
		}
		if _, err := db.ExecContext(ctx, "ANALYZE"); err != nil { // it is slower on a table without statistics
			return measured{}, err
		}
		s, err := to(n)
		if err != nil {
			return measured{}, err
		}
		f, err := wforwarder.NewForwarder(sub, s, watermill.NopLogger{}, wforwarder.Config{ForwarderTopic: watermillTopic})
		if err != nil {
			return measured{}, err
		}
		ended := make(chan error, 1)
		begun := time.Now()
		go func() { ended <- f.Run(ctx) }()
		if err := s.wait(ctx); err != nil {
			return measured{}, err
		}
		if err := offsetReaches(ctx, db, n); err != nil {
			return measured{}, err
		}
		took := time.Since(begun)
		return measured{value: perSecond(n, took)}, errors.Join(f.Close(), <-ended, s.check())
	}
}

func loadWatermill(db *sql.DB, n int) error {
	pub, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: watermillSchema}, nil)
	if err != nil {
		return err
	}
	enveloping := wforwarder.NewPublisher(pub, wforwarder.PublisherConfig{ForwarderTopic: watermillTopic})
	const chunk = 100
	for first := 0; first < n; first += chunk {
		var msgs message.Messages
		for i := first; i < min(first+chunk, n); i++ {
			msgs = append(msgs, messageOf(i))
		}
		if err := enveloping.Publish(topic, msgs...); err != nil {
			return err
		}
	}
	return nil
}

// offsetReaches returns when the subscriber has committed the offset of the last message.
func offsetReaches(ctx context.Context, db *sql.DB, n int) error {
	query := `SELECT coalesce(max(offset_acked), 0) FROM ` +
		wsql.DefaultPostgreSQLOffsetsAdapter{}.MessagesOffsetsTable(watermillTopic)
	for {
		var acked int
		if err := db.QueryRowContext(ctx, query).Scan(&acked); err != nil || acked >= n {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}
