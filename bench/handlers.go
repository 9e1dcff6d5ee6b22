package main

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/middleware"
)

const (
	service        = "bench"
	consumer       = "book"
	businessTable  = "CREATE TABLE business (id bigint PRIMARY KEY, amount bigint NOT NULL)"
	businessInsert = "INSERT INTO business (id, amount) VALUES ($1, $2)"
)

// handler returns a function that handles message i in a transaction.
type handler func(d *database) (func(ctx context.Context, i int) error, error)

func middlewares(d *database) (func(context.Context, int) error, error) {
	return d.stacked()
}

func silentMiddlewares(d *database) (func(context.Context, int) error, error) {
	d, err := d.silent()
	if err != nil {
		return nil, err
	}
	return d.stacked()
}

func (d *database) stacked() (func(context.Context, int) error, error) {
	pub, err := outbox.NewPublisher(d.db, outbox.PublisherConfig{}, nil)
	if err != nil {
		return nil, err
	}
	handle := func(msg *message.Message) ([]*message.Message, error) {
		i := indexOf(msg.UUID)
		tx, err := outbox.PgxTx(msg.Context())
		if err != nil {
			return nil, err
		}
		if _, err := tx.Exec(msg.Context(), businessInsert, i, i); err != nil {
			return nil, err
		}
		return []*message.Message{messageOf(i)}, nil
	}
	inbox, inboxErr := middleware.Inbox(d.db, middleware.InboxConfig{Service: service, Consumer: consumer}, nil)
	out, outErr := middleware.Outbox(pub, middleware.OutboxConfig{Topic: topic}, nil)
	tx, txErr := middleware.Tx(d.db, middleware.TxConfig{}, nil)
	if err := errors.Join(txErr, inboxErr, outErr); err != nil {
		return nil, err
	}
	chain := tx(inbox(out(handle)))
	return func(ctx context.Context, i int) error {
		msg := messageOf(i)
		msg.SetContext(ctx)
		_, err := chain(msg)
		return err
	}, nil
}

// handWritten runs the statements that the middlewares run, each in its own round trip.
func handWritten(d *database) (func(context.Context, int) error, error) {
	claim, insert := sqltext.Tables{}.Render(sqltext.ClaimInbox), sqltext.Tables{}.Render(sqltext.InsertMessages)
	return func(ctx context.Context, i int) error {
		in := messageOf(i)
		tx, err := d.pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		var ours, standby bool
		var attempts int
		var seconds float64
		var token int64
		err = tx.QueryRow(ctx, claim, service+"/"+consumer, in.UUID, []byte(nil)).Scan(&ours, &attempts, &seconds,
			&token, &standby)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, businessInsert, i, i); err != nil {
			return err
		}
		out := messageOf(i)
		out.Metadata["correlation_id"], out.Metadata[outbox.MetadataCausationID] = in.UUID, in.UUID
		metadata, err := json.Marshal(out.Metadata)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, insert, []string{out.UUID}, []string{topic}, []string{out.Metadata[outbox.MetadataKey]},
			[][]byte{out.Payload}, []string{string(metadata)}, []string(nil), []float64(nil))
		if err != nil {
			return err
		}
		return tx.Commit(ctx)
	}, nil
}
