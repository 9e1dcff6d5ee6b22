package schema

import (
	"fmt"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// Format is a migration tool whose file layout Files writes.
type Format string

// The formats of Files. psql and atlas read plain SQL in the order of its file names.
const (
	Goose         Format = "goose"
	GolangMigrate Format = "golang-migrate"
	Plain         Format = "plain"
)

// FilesConfig configures Files.
type FilesConfig struct {
	// Format is the tool that will read the files. Required.
	Format Format
	// Tables are the names of the tables, as in outbox.DBConfig.
	Tables outbox.Tables
	// StartAt is the number of the first returned file; default: as if all files were in the folder, from 1. Set it for
	// a folder with files of your own.
	StartAt int64
	// From is the first version to return, for an upgrade; default 1.
	From int
	// PartitionSize is as in MigrateConfig.
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
	if err := sqltext.Tables(c.Tables).Validate(); err != nil {
		return fmt.Errorf("FilesConfig.Tables: %w", err)
	}
	return nil
}

// File is one file to write into the tool's migration folder.
type File struct {
	Name    string
	Content string
}

// Files returns the statements of Migrate as files for another migration tool, in the order in which they must run.
// Each file records its version for Migrate and Check. There are no down migrations, because an outbox may contain
// promised messages. Files returns an error that names an invalid table or field.
func Files(cfg FilesConfig) ([]File, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	all, err := migrations.All()
	if err != nil {
		return nil, err
	}
	var files []File
	for _, m := range all {
		if m.Version < cfg.From {
			continue
		}
		number := int64(m.Version)
		if cfg.StartAt > 0 {
			number = cfg.StartAt + int64(len(files))
		}
		name := fmt.Sprintf("%04d_watermill_%s", number, m.Name)
		if cfg.Format == GolangMigrate {
			name += ".up"
		}
		content, err := body(m, cfg)
		if err != nil {
			return nil, err
		}
		files = append(files, File{name + ".sql", content})
	}
	return files, nil
}

// recorded returns the statement that records a migration as applied.
func recorded(m migrations.Migration, cfg FilesConfig) string {
	return fmt.Sprintf(sqltext.Tables(cfg.Tables).Render(
		"INSERT INTO {migrations} (version, name, checksum) VALUES (%d, '%s', '%s')"), m.Version, m.Name, m.Checksum())
}

// body returns the content of a migration's file.
func body(m migrations.Migration, cfg FilesConfig) (string, error) {
	names, record := sqltext.Tables(cfg.Tables), recorded(m, cfg)
	content := ""
	if cfg.Format == Goose {
		content = "-- +goose Up\n"
	}
	if m.Version == 1 {
		if cfg.Tables.Schema != "" {
			content += createSchema + sqltext.Quote(cfg.Tables.Schema) + ";\n\n"
		}
		content += names.Render(createMigrations) + ";\n\n"
		if cfg.PartitionSize > 0 {
			var err error
			if m.Text, err = m.InPartitions(cfg.PartitionSize); err != nil {
				return "", err
			}
		}
	}
	return content + names.Render(m.Text) + "\n" + record + ";\n", nil
}
