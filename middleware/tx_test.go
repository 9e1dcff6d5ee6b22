package middleware

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgconn"

	outbox "github.com/millrace-go/watermill-outbox"
)

// fakeConn is a server behind database/sql that only begins and ends transactions.
type fakeConn struct{}

func (c fakeConn) Connect(context.Context) (driver.Conn, error) { return c, nil }
func (fakeConn) Driver() driver.Driver                          { return nil }
func (fakeConn) Prepare(string) (driver.Stmt, error)            { return nil, errors.New("no statements") }
func (c fakeConn) Begin() (driver.Tx, error)                    { return c, nil }
func (fakeConn) Commit() error                                  { return nil }
func (fakeConn) Rollback() error                                { return nil }
func (fakeConn) Close() error                                   { return nil }

// TestTxReportsTheConflictAtTheDeadline: the last attempt before a message's deadline is the one that is reported and
// counted, not a BEGIN after it.
func TestTxReportsTheConflictAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := sql.OpenDB(fakeConn{})
		defer pool.Close()
		db, err := outbox.FromSQL(pool, outbox.DBConfig{DisableNotify: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		tx, err := Tx(db, TxConfig{Backoff: outbox.Backoff{Initial: time.Hour}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		msg := message.NewMessage("1", nil)
		msg.SetContext(ctx)
		conflict := &pgconn.PgError{Code: "40001"}
		_, err = tx(func(*message.Message) ([]*message.Message, error) { return nil, conflict })(msg)
		if !errors.Is(err, conflict) {
			t.Error(err)
		}
	})
}
