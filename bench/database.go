package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/schema"
)

// database is an empty database with the tables of the outbox, made for one run of one side.
type database struct {
	url  string
	pool *pgxpool.Pool
	db   *outbox.DB
	drop func()
}

// newDatabase creates a database. Dropping it ends with a checkpoint, so every run starts alike.
func (b *bench) newDatabase(ctx context.Context) (*database, error) {
	return b.newDatabaseOn(ctx, b.postgres, schema.MigrateConfig{})
}

// newServer creates a database on its own server, which ends with it, because snapshots list the transactions of all
// databases of a server. A server named in the environment is shared by all.
func (b *bench) newServer(ctx context.Context) (*database, error) {
	postgres, err := services.StartPostgres(ctx, services.Options{})
	if err != nil {
		return nil, err
	}
	close := func() {
		if postgres.URL() == b.postgres.URL() {
			return
		}
		if err := postgres.Close(); err != nil {
			b.progress("%v", err)
		}
	}
	d, err := b.newDatabaseOn(ctx, postgres, schema.MigrateConfig{})
	if err != nil {
		close()
		return nil, err
	}
	drop := d.drop
	d.drop = func() { drop(); close() }
	return d, nil
}

func (b *bench) newDatabaseOn(
	ctx context.Context, postgres *services.Postgres, tables schema.MigrateConfig,
) (*database, error) {
	url, err := postgres.NewDatabase(ctx)
	if err != nil {
		return nil, err
	}
	d := &database{url: url}
	d.drop = func() {
		if d.pool != nil {
			d.pool.Close()
		}
		if err := postgres.DropDatabase(context.WithoutCancel(ctx), url); err != nil {
			b.progress("%v", err)
		}
	}
	if d.pool, err = pgxpool.New(ctx, url); err != nil {
		d.drop()
		return nil, err
	}
	if d.db, err = outbox.FromPgx(d.pool, outbox.DBConfig{}, nil); err != nil {
		d.drop()
		return nil, err
	}
	if _, err := schema.Migrate(ctx, d.db, tables); err != nil {
		d.drop()
		return nil, err
	}
	return d, nil
}

// settled returns an error unless every row is gone or marked published.
func (d *database) settled(ctx context.Context) error {
	var pending int
	if err := d.pool.QueryRow(ctx, "SELECT count(*) FROM outbox WHERE published_at IS NULL").Scan(&pending); err != nil {
		return err
	}
	if pending > 0 {
		return fmt.Errorf("%d rows are not settled", pending)
	}
	return nil
}

// open returns a database for a pool that its caller closes.
func open(url string, pool *pgxpool.Pool) (*database, error) {
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	return &database{url: url, pool: pool, db: db}, err
}

// silent returns the database with a handle that sends no notifications.
func (d *database) silent() (*database, error) {
	quiet := *d
	var err error
	quiet.db, err = outbox.FromPgx(d.pool, outbox.DBConfig{DisableNotify: true}, nil)
	return &quiet, err
}
