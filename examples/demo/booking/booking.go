// Package booking is the business of the demos: it books orders to accounts. It depends on neither the broker nor the
// outbox: all it needs is the transaction in the message's context.
package booking

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
)

// Order is an incoming message.
type Order struct {
	ID      string `json:"id"`
	Account string `json:"account"`
	Cents   int64  `json:"cents"`
}

// Booked is the outgoing event. Number counts the bookings of the account from 1.
type Booked struct {
	OrderID string `json:"order_id"`
	Account string `json:"account"`
	Number  int64  `json:"number"`
}

// There is no unique index on order_id: only the inbox stands between a duplicate and a second booking.
const tables = `
create table if not exists accounts (id text primary key, cents bigint not null, bookings bigint not null);
create table if not exists bookings (
	order_id text not null, account text not null, number bigint not null, cents bigint not null);`

// CreateTables makes the tables of this package.
func CreateTables(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, tables)
	return err
}

// Book handles one order. Its writes and the messages that it returns are committed together, or not at all.
func Book(msg *message.Message) ([]*message.Message, error) {
	var order Order
	if err := json.Unmarshal(msg.Payload, &order); err != nil {
		return nil, outbox.Poison(fmt.Errorf("decode order: %w", err)) // no redelivery can help
	}
	ctx := msg.Context()
	tx, err := outbox.PgxTx(ctx)
	if err != nil {
		return nil, err
	}

	booked := Booked{OrderID: order.ID, Account: order.Account}
	err = tx.QueryRow(ctx, `
		insert into accounts (id, cents, bookings) values ($1, $2, 1)
		on conflict (id) do update set cents = accounts.cents + excluded.cents, bookings = accounts.bookings + 1
		returning bookings`, order.Account, order.Cents).Scan(&booked.Number)
	if err != nil {
		return nil, fmt.Errorf("update account: %w", err)
	}
	_, err = tx.Exec(ctx, "insert into bookings (order_id, account, number, cents) values ($1, $2, $3, $4)",
		order.ID, order.Account, booked.Number, order.Cents)
	if err != nil {
		return nil, fmt.Errorf("insert booking: %w", err)
	}

	payload, err := json.Marshal(booked)
	if err != nil {
		return nil, err
	}
	event := message.NewMessage(watermill.NewUUID(), payload)
	outbox.SetAggregate(event, "account", order.Account) // events of one account keep their order
	return message.Messages{event}, nil
}
