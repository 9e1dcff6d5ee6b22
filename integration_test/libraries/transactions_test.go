package libraries

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/schema"
)

// libraryOrder is a row as declared for GORM and bun.
type libraryOrder struct {
	bun.BaseModel `bun:"table:library_orders" gorm:"-"`

	OrderID string `bun:",pk" gorm:"primaryKey"`
}

func (libraryOrder) TableName() string { return "library_orders" }

// queries is what sqlc generates for one statement.
type queries struct{ db dbtx }

type dbtx interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}

func (q *queries) WithTx(tx *sql.Tx) *queries { return &queries{db: tx} }

func (q *queries) CreateOrder(ctx context.Context, id string) error {
	_, err := q.db.ExecContext(ctx, "INSERT INTO library_orders (order_id) VALUES ($1)", id)
	return err
}

// TestLibrariesWriteInTheTransaction: with the transaction of the context, as in docs/start/writing.md, rows written by
// sqlc, bun and GORM are committed or rolled back with the message.
func TestLibrariesWriteInTheTransaction(t *testing.T) {
	t.Parallel()
	db := open(t, newDatabase(t))
	handle := openOutbox(t, db, outbox.Tables{})
	_, err := schema.Migrate(t.Context(), handle, schema.MigrateConfig{})
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "CREATE TABLE library_orders (order_id text PRIMARY KEY)")
	require.NoError(t, err)
	events, err := outbox.NewPublisher(handle, outbox.PublisherConfig{}, nil)
	require.NoError(t, err)
	generated := &queries{db: db}
	bunDB := bun.NewDB(db, pgdialect.New())
	gormDB, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{})
	require.NoError(t, err)

	for name, insert := range map[string]func(ctx context.Context, tx *sql.Tx, id string) error{
		"sqlc": func(ctx context.Context, tx *sql.Tx, id string) error {
			return generated.WithTx(tx).CreateOrder(ctx, id)
		},
		"bun": func(ctx context.Context, tx *sql.Tx, id string) error {
			_, err := bunDB.NewInsert().Conn(tx).Model(&libraryOrder{OrderID: id}).Exec(ctx)
			return err
		},
		"GORM": func(ctx context.Context, tx *sql.Tx, id string) error {
			session := gormDB.Session(&gorm.Session{NewDB: true, Context: ctx, SkipDefaultTransaction: true})
			session.Statement.ConnPool = tx
			return session.Create(&libraryOrder{OrderID: id}).Error
		},
	} {
		t.Run(name, func(t *testing.T) {
			both := func(id string, fails error) error {
				return outbox.InTx(t.Context(), handle, func(ctx context.Context) error {
					tx, err := outbox.SQLTx(ctx)
					if err != nil {
						return err
					}
					if err := insert(ctx, tx, id); err != nil {
						return err
					}
					return errors.Join(events.PublishContext(ctx, "orders", message.NewMessage(watermill.NewUUID(), []byte(id))),
						fails)
				})
			}
			require.NoError(t, both(name+" kept", nil))
			refused := errors.New("refused")
			require.ErrorIs(t, both(name+" gone", refused), refused)
			assert.Equal(t, []string{name + " kept"},
				column(t, db, "SELECT order_id FROM library_orders WHERE order_id LIKE $1", name+" %"))
			assert.Equal(t, []string{name + " kept"},
				column(t, db, "SELECT convert_from(payload, 'UTF8') FROM outbox WHERE convert_from(payload, 'UTF8') LIKE $1",
					name+" %"))
		})
	}
}
