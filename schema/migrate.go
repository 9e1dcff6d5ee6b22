package schema

import (
	"context"
	"errors"
	"fmt"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
)

// ErrSchemaChanged is returned by Migrate if an applied version differs from this build's, and by Check
// with all problems.
//
// Cure: run outboxctl migrate up, or do what the error lists.
var ErrSchemaChanged = errors.New("schema does not match this version of the library")

// MigrateConfig configures Migrate. The zero value runs all that is missing.
type MigrateConfig struct {
	// To is the last version to run; default the newest.
	To int
	// PartitionSize creates the outbox in partitions of this many ids; default 0, one table. docs/run/partitions.md
	// says when and how. It only applies to a new outbox.
	PartitionSize int64
}

// mostIDs exceeds every possible size of a partition.
const mostIDs = 1 << 50

func checkPartitionSize(config string, size int64) error {
	if size < 0 || size > mostIDs {
		return fmt.Errorf("%s.PartitionSize is %d: use the number of ids in a partition, up to %d, or 0 for one table",
			config, size, int64(mostIDs))
	}
	return nil
}

// Migration is one version of the tables.
type Migration struct {
	Version int
	Name    string
	// AppliedAt is when it was applied, by the database's clock; zero if it was not.
	AppliedAt time.Time
}

// Migrate brings the tables up to the version that this build needs and returns the migrations that it ran, even with
// an error. It is idempotent and safe to call from several processes: one works, the others wait. If a newer build has
// migrated further, it does nothing. All missing migrations run in one transaction.
//
// It creates Tables.Schema if that is missing. Otherwise the role needs USAGE and CREATE on the schema, or, if the
// tables are up to date, SELECT on the table of migrations. It returns outbox.ErrNoDB, ErrSchemaChanged if an applied
// version differs from this build's, or an error of the database.
func Migrate(ctx context.Context, db *outbox.DB, cfg MigrateConfig) ([]Migration, error) {
	all, err := known(db)
	if err != nil {
		return nil, err
	}
	if cfg.To < 0 || cfg.To > len(all) {
		return nil, fmt.Errorf("MigrateConfig.To is %d: this build knows versions 1 to %d, and 0 means all", cfg.To, len(all))
	}
	if err := checkPartitionSize("MigrateConfig", cfg.PartitionSize); err != nil {
		return nil, err
	}
	if cfg.To > 0 {
		all = all[:cfg.To]
	}
	r := run{db: (*core.DB)(db), names: (*core.DB)(db).Tables(), cfg: cfg, all: all}
	for {
		err = r.round(ctx)
		if errors.Is(err, errLocked) {
			select {
			case <-time.After(lockPause):
				continue
			case <-ctx.Done():
				err = fmt.Errorf("%w: %w", errLocked, ctx.Err())
			}
		}
		if err != nil {
			err = fmt.Errorf("migrate %s: %w", r.names.OutboxName(), explainMigrate(ctx, r.db, r.names, "migrate", err))
		}
		return r.ran, err
	}
}

// Status returns the migrations that this build knows and those that a newer one has applied, in order. It changes
// nothing. It returns outbox.ErrNoDB; any other error comes from the database.
func Status(ctx context.Context, db *outbox.DB) ([]Migration, error) {
	all, err := known(db)
	if err != nil {
		return nil, err
	}
	names := (*core.DB)(db).Tables()
	done, err := readHistory(ctx, (*core.DB)(db), names)
	if err != nil {
		return nil, fmt.Errorf("status of %s: %w", names.OutboxName(), err)
	}
	var list []Migration
	for _, m := range all {
		a := done.of(m.Version)
		list = append(list, Migration{m.Version, m.Name, a.at})
	}
	for _, a := range done {
		if a.version > len(all) {
			list = append(list, Migration{Version: a.version, Name: a.name, AppliedAt: a.at})
		}
	}
	return list, nil
}

func known(db *outbox.DB) ([]migrations.Migration, error) {
	if err := (*core.DB)(db).Check(); err != nil {
		return nil, err
	}
	return migrations.All()
}
