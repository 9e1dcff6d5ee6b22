package schema

import (
	"fmt"
	"strings"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// Format is a migration tool whose file layout Files writes.
type Format string

// The formats of Files. Plain SQL in the order of its file names is what psql reads, and atlas.
const (
	Goose         Format = "goose"
	GolangMigrate Format = "golang-migrate"
	Plain         Format = "plain"
)

// FilesConfig configures Files.
type FilesConfig struct {
	// Format is the tool that will read the files. Required.
	Format Format
	// Tables are the names of the tables, as in outbox.DBConfig; default: outbox and its companions in the search
	// path.
	Tables outbox.Tables
	// StartAt is the number of the first file that is returned, and the next ones follow it. Set it where the folder has
	// files of your own, which goose and golang-migrate order by number and refuse to have twice. Default: the files
	// are numbered from 1 on, as if all of them were in the folder.
	StartAt int64
	// From is the first version to return: for an upgrade, the one after the last that the folder has. Default 1.
	From int
	// PartitionSize is that of MigrateConfig. Set it for an upgrade (From) too where the outbox is in partitions, however
	// it came to be: a later index on it is then made without CONCURRENTLY, which a table in partitions refuses.
	PartitionSize int64
}

func (c FilesConfig) validate() error {
	switch {
	case c.Format != Goose && c.Format != GolangMigrate && c.Format != Plain:
		return fmt.Errorf("FilesConfig.Format is %q: use %s, %s or %s", c.Format, Goose, GolangMigrate, Plain)
	case c.StartAt < 0:
		return fmt.Errorf("FilesConfig.StartAt is %d: use the number of the first file, or 0", c.StartAt)
	case c.From < 0:
		return fmt.Errorf("FilesConfig.From is %d: use the first version to return, or 0 for all", c.From)
	}
	if err := checkPartitionSize("FilesConfig", c.PartitionSize); err != nil {
		return err
	}
	if err := c.Tables.Validate(); err != nil {
		return fmt.Errorf("FilesConfig.Tables: %w", err)
	}
	return nil
}

// File is one file to write into the tool's migration folder.
type File struct {
	Name    string
	Content string
}

// Files returns the statements of Migrate as files for another migration tool, in the order in which
// they must run. Each also records its version, so that Migrate and Check see what the tool applied.
// There is no way down: an outbox may hold messages that were promised.
//
// A concurrent migration is a file that the tool runs outside of a transaction. golang-migrate runs all of a file at
// once, so there it is a file for each statement: if one fails, force the version before the one that drops the index,
// so that what is left of it is dropped before it is built again. Atlas goes on at the statement that failed: drop the
// index by hand first. psql goes on after it: set ON_ERROR_STOP.
//
// It returns outbox.ErrBadName for names that are refused, and errors that name the field at fault.
func Files(cfg FilesConfig) ([]File, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	all, err := migrations.All()
	if err != nil {
		return nil, err
	}
	var files []File
	number, first := int64(0), int64(0)
	for _, m := range all {
		record := recorded(m, cfg)
		if m.Version == 1 && cfg.PartitionSize > 0 {
			if m.Text, err = m.InPartitions(cfg.PartitionSize); err != nil {
				return nil, err
			}
		}
		for _, body := range bodies(m, record, cfg) {
			number++
			if m.Version < cfg.From {
				continue
			}
			if len(files) == 0 {
				first = number
			}
			n := number
			if cfg.StartAt > 0 {
				n += cfg.StartAt - first
			}
			name := fmt.Sprintf("%04d_watermill_%s", n, m.Name)
			if cfg.Format == GolangMigrate {
				name += ".up"
			}
			files = append(files, File{name + ".sql", body})
		}
	}
	return files, nil
}

// recorded is the statement that notes a migration as applied.
func recorded(m migrations.Migration, cfg FilesConfig) string {
	return fmt.Sprintf(sqltext.Tables(cfg.Tables).Render(
		"INSERT INTO {migrations} (version, name, checksum) VALUES (%d, '%s', '%s')"), m.Version, m.Name, m.Checksum())
}

// plain writes booleans as true: Postgres takes on as well, and Atlas does not read it from the index that it makes.
// The checksum stays that of the migration.
func plain(text string) string {
	return strings.ReplaceAll(text, "autosummarize = on", "autosummarize = true")
}

// bodies returns what the files of one migration hold.
func bodies(m migrations.Migration, record string, cfg FilesConfig) []string {
	names := sqltext.Tables(cfg.Tables)
	if !m.Concurrent {
		body := ""
		if cfg.Format == Goose {
			body = "-- +goose Up\n"
		}
		if m.Version == 1 {
			if cfg.Tables.Schema != "" {
				body += createSchema + sqltext.Quote(cfg.Tables.Schema) + ";\n\n"
			}
			body += names.Render(createMigrations) + ";\n\n"
		}
		return []string{body + plain(names.Render(m.Text)) + "\n" + record + ";\n"}
	}
	var statements []string
	for _, s := range m.Statements() {
		if index, table, ok := migrations.BuildsIndex(s); ok {
			// What a failed build left. There is nothing else by that name: this version was not recorded.
			drop := "DROP INDEX CONCURRENTLY IF EXISTS "
			if cfg.PartitionSize > 0 && table == "{outbox}" {
				// Of a table in partitions no index is built or dropped concurrently.
				drop, s = "DROP INDEX IF EXISTS ", strings.Replace(s, "INDEX CONCURRENTLY", "INDEX", 1)
			}
			statements = append(statements, drop+names.InSchema(index))
		}
		statements = append(statements, names.Render(s))
	}
	statements = append(statements, record+" ON CONFLICT DO NOTHING")
	switch cfg.Format {
	case GolangMigrate:
		for i := range statements {
			statements[i] += ";\n"
		}
		return statements
	case Goose:
		return []string{"-- +goose NO TRANSACTION\n-- +goose Up\n" + strings.Join(statements, ";\n\n") + ";\n"}
	default:
		return []string{"-- atlas:txmode none\n\n" + strings.Join(statements, ";\n\n") + ";\n"}
	}
}
