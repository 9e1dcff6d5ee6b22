package schema

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const appliedMigrations = `SELECT version, name, checksum, applied_at FROM {migrations} ORDER BY version`

// history is the migrations applied to a database, by version.
type history []applied

type applied struct {
	version        int
	name, checksum string
	at             time.Time
}

// readHistory reads the history of a database that may not have our tables.
func readHistory(ctx context.Context, q drive.Querier, names sqltext.Tables) (history, error) {
	there, err := relations(ctx, q, names, "{migrations}")
	if err != nil || len(there) == 0 {
		return nil, err
	}
	return readApplied(ctx, q, names)
}

func readApplied(ctx context.Context, q drive.Querier, names sqltext.Tables) (history, error) {
	var done history
	err := drive.Collect(ctx, q, func(rows drive.Rows) error {
		var a applied
		if err := rows.Scan(&a.version, &a.name, &a.checksum, &a.at); err != nil {
			return err
		}
		done = append(done, a)
		return nil
	}, names.Render(appliedMigrations))
	if err != nil {
		return nil, fmt.Errorf("read applied migrations: %w", err)
	}
	return done, nil
}

func (h history) of(version int) applied {
	for _, a := range h {
		if a.version == version {
			return a
		}
	}
	return applied{}
}

func (h history) has(version int) bool { return h.of(version).version == version }

// compare returns an error if the history of the versions that this build knows is different. Newer versions are fine.
func (h history) compare(all []migrations.Migration) error {
	for _, m := range all {
		a := h.of(m.Version)
		switch last := h.last(); {
		case a.version == 0 && last > m.Version:
			return fmt.Errorf("%w: version %d was applied, but version %d (%s) was not", ErrSchemaChanged, last,
				m.Version, m.Name)
		case a.version != 0 && a.checksum != m.Checksum():
			return fmt.Errorf("%w: version %d (%s) was applied with different "+
				"contents", ErrSchemaChanged, a.version, a.name)
		}
	}
	return nil
}

func (h history) last() int {
	if len(h) == 0 {
		return 0
	}
	return h[len(h)-1].version
}
