package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	outbox "github.com/millrace-go/watermill-outbox"
)

// All messages have one topic, and the order as their key, so messages of an order arrive in the order in which they
// were sent.
const topic = "shop"

// The commands and the replies.
const (
	takePayment   = "take payment"
	paid          = "paid"
	refused       = "payment refused"
	reserveStock  = "reserve stock"
	reserved      = "reserved"
	soldOut       = "sold out"
	timeIsUp      = "time is up"
	returnPayment = "return payment"
	returned      = "payment returned"
)

// transitions are the saga: for each state and message, the next state and the message sent then. A message that a
// state does not list changes nothing there, such as the time limit of a booked order.
var transitions = map[string]map[string]struct{ state, send string }{
	"paying": {
		paid:     {"reserving", reserveStock},
		refused:  {"cancelled", ""},
		timeIsUp: {"giving up", ""}, // the payment may still succeed
	},
	"giving up": {
		paid:    {"returning", returnPayment},
		refused: {"cancelled", ""},
	},
	"reserving": {
		reserved: {"booked", ""},
		soldOut:  {"returning", returnPayment},
	},
	"returning": {
		returned: {"cancelled", ""},
	},
}

// participants do one thing each, and return the reply. In production they would be separate services.
var participants = map[string]func(ctx context.Context, tx pgx.Tx, order string) (answer string, err error){
	takePayment:   pay,
	reserveStock:  reserve,
	returnPayment: payBack,
}

func newMessage(order, kind string) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), []byte(order))
	msg.Metadata.Set("kind", kind)
	outbox.SetKey(msg, order)
	return msg
}

// place begins a saga. Its time limit is a delayed message.
func place(
	ctx context.Context, db *outbox.DB, pub *outbox.Publisher, limit time.Duration, order, item string, amount int64,
) error {
	return outbox.InTx(ctx, db, func(ctx context.Context) error {
		tx, err := outbox.PgxTx(ctx)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO sagas (order_id, item, amount, state) VALUES ($1, $2, $3, 'paying')`, order,
			item, amount); err != nil {
			return fmt.Errorf("place %s: %w", order, err)
		}
		late := newMessage(order, timeIsUp)
		outbox.SetDelay(late, limit)
		return pub.PublishContext(ctx, topic, newMessage(order, takePayment), late)
	})
}

// step handles every message. Its writes and the messages it returns are one transaction, and a copy of a message is
// not handled again.
func step(msg *message.Message) ([]*message.Message, error) {
	ctx, order, kind := msg.Context(), string(msg.Payload), msg.Metadata.Get("kind")
	tx, err := outbox.PgxTx(ctx)
	if err != nil {
		return nil, err
	}
	if do := participants[kind]; do != nil {
		answer, err := do(ctx, tx, order)
		if err != nil {
			return nil, err
		}
		return message.Messages{newMessage(order, answer)}, nil
	}
	var state string
	if err := tx.QueryRow(ctx, `SELECT state FROM sagas WHERE order_id = $1 FOR UPDATE`, order).Scan(&state); err != nil {
		return nil, err
	}
	next, ok := transitions[state][kind]
	if !ok {
		return nil, nil
	}
	if _, err := tx.Exec(ctx, `UPDATE sagas SET state = $2 WHERE order_id = $1`, order, next.state); err != nil {
		return nil, err
	}
	if next.send == "" {
		return nil, nil
	}
	return message.Messages{newMessage(order, next.send)}, nil
}

const creditLimit = 1000

func pay(ctx context.Context, tx pgx.Tx, order string) (string, error) {
	tag, err := tx.Exec(ctx, `INSERT INTO payments (order_id, amount) SELECT order_id, amount FROM sagas `+
		`WHERE order_id = $1 AND amount <= $2`, order, creditLimit)
	if err == nil && tag.RowsAffected() == 0 {
		return refused, nil
	}
	return paid, err
}

func reserve(ctx context.Context, tx pgx.Tx, order string) (string, error) {
	tag, err := tx.Exec(ctx, `UPDATE stock SET in_stock = in_stock - 1 WHERE item = (SELECT item FROM sagas `+
		`WHERE order_id = $1) AND in_stock > 0`, order)
	if err == nil && tag.RowsAffected() == 0 {
		return soldOut, nil
	}
	return reserved, err
}

func payBack(ctx context.Context, tx pgx.Tx, order string) (string, error) {
	tag, err := tx.Exec(ctx, `UPDATE payments SET returned = true WHERE order_id = $1 AND NOT returned`, order)
	if err == nil && tag.RowsAffected() == 0 {
		err = errors.New("there is no payment to return")
	}
	return returned, err
}
