package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/schema"
)

func (a *app) migrate() *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Create the tables and keep them up to date: up, status, print, roles"}
	cmd.AddCommand(a.migrateUp(), a.migrateStatus(), a.migratePrint(), a.migrateRoles())
	return cmd
}

// migration is one version as JSON.
type migration struct {
	Version   int       `json:"version"`
	Name      string    `json:"name"`
	AppliedAt time.Time `json:"applied_at,omitzero"`
}

func migrations(list []schema.Migration) map[string][]migration {
	all := make([]migration, len(list))
	for i, m := range list {
		all[i] = migration(m)
	}
	return map[string][]migration{"migrations": all}
}

func (a *app) migrateUp() *cobra.Command {
	var cfg schema.MigrateConfig
	cmd := &cobra.Command{
		Use: "up", Short: "Migrate the tables to the version of this outboxctl",
		Long: `Migrate the tables to the version of this outboxctl. Run it as often as you like; concurrent runs wait
for one another.`,
	}
	cmd.Flags().IntVar(&cfg.To, "to", 0, "last version to apply; 0 = the newest")
	cmd.Flags().Int64Var(&cfg.PartitionSize, "partition-size", 0, "partition a new outbox table, with this many ids "+
		"per partition; 0 = one table")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withDB(cmd.Context(), func(db *outbox.DB) error {
			ran, err := schema.Migrate(cmd.Context(), db, cfg)
			if err != nil {
				for _, m := range ran {
					a.inform("applied %d %s", m.Version, m.Name)
				}
				return err
			}
			return a.show(migrations(ran), func() error {
				for _, m := range ran {
					if err := a.say("applied %d %s", m.Version, m.Name); err != nil {
						return err
					}
				}
				if len(ran) == 0 {
					return a.say("nothing to do")
				}
				return nil
			})
		})
	}
	return cmd
}

func (a *app) migrateStatus() *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "List the migrations, and when they were applied"}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withDB(cmd.Context(), func(db *outbox.DB) error {
			list, err := schema.Status(cmd.Context(), db)
			if err != nil {
				return err
			}
			return a.show(migrations(list), func() error { return a.printMigrations(list) })
		})
	}
	return cmd
}

func (a *app) printMigrations(list []schema.Migration) error {
	g := grid{heads: []string{"VERSION", "APPLIED", "NAME"}}
	for _, m := range list {
		applied := cell{"missing", yellow}
		if !m.AppliedAt.IsZero() {
			applied = cell{text: moment(m.AppliedAt)}
		}
		g.rows = append(g.rows, []cell{{text: strconv.Itoa(m.Version)}, applied, {text: m.Name}})
	}
	return g.print(a)
}

func (a *app) migratePrint() *cobra.Command {
	var cfg schema.FilesConfig
	var format, dir string
	cmd := &cobra.Command{
		Use: "print", Short: "Print the migrations for psql or another migration tool",
		Long:    `Print the migrations for psql, or as files for goose, golang-migrate or Atlas (plain), without a database.`,
		Example: "  outboxctl migrate print | psql -1 -v ON_ERROR_STOP=1",
	}
	cmd.Flags().StringVar(&format, "format", string(schema.Plain), "`format`: plain, goose, golang-migrate")
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions([]string{"plain", "goose", "golang-migrate"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().StringVar(&dir, "dir", "", "write files into this `folder`, except those that exist")
	cmd.Flags().Int64Var(&cfg.StartAt, "start-at", 0, "number of the first file, after your own migrations; 0 = their "+
		"own numbers")
	cmd.Flags().IntVar(&cfg.From, "from", 0, "first version to print; 0 = all")
	cmd.Flags().Int64Var(&cfg.PartitionSize, "partition-size", 0, "for an outbox in partitions of this many ids; "+
		"0 = one table")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		if cfg.Tables, err = a.tables(); err != nil {
			return err
		}
		cfg.Format = schema.Format(format)
		files, err := schema.Files(cfg)
		if err != nil {
			return &usageError{err}
		}
		if dir != "" && len(files) == 0 {
			return a.say("nothing to write: version %d does not exist: outboxctl migrate status lists them", cfg.From)
		}
		if dir != "" {
			return a.writeFiles(cmd.Context(), dir, files)
		}
		if a.isJSON() {
			return a.json(map[string]any{"files": named(files)}, false)
		}
		for _, f := range files {
			if err := a.say("-- %s\n", f.Name); err != nil {
				return err
			}
			if _, err := a.world.Out.Write([]byte(f.Content + "\n")); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// sqlFile is a file as JSON.
type sqlFile struct {
	Name    string `json:"name"`
	Content string `json:"content"`
}

func named(files []schema.File) []sqlFile {
	all := make([]sqlFile, len(files))
	for i, f := range files {
		all[i] = sqlFile(f)
	}
	return all
}

func (a *app) writeFiles(ctx context.Context, dir string, files []schema.File) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := filepath.Join(dir, f.Name)
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("%w: print only new versions, with --from", err)
		}
		if err != nil {
			return err
		}
		_, err = file.WriteString(f.Content)
		if closed := file.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return err
		}
		if err := a.say("wrote %s", name); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) migrateRoles() *cobra.Command {
	var cfg schema.RolesConfig
	cmd := &cobra.Command{
		Use: "roles", Short: "Print SQL that creates roles with the least privileges",
		Long: `Print SQL that creates roles with the least privileges. Run it as the owner of the tables after migrate up,
as often as you like.`,
	}
	cmd.Flags().StringVar(&cfg.Prefix, "prefix", "", "prefix of their names (default: the outbox table's name and _)")
	cmd.RunE = func(*cobra.Command, []string) error {
		var err error
		if cfg.Tables, err = a.tables(); err != nil {
			return err
		}
		if clean(cfg.Prefix) != cfg.Prefix {
			return usagef("--prefix is %q: use printable characters", cfg.Prefix)
		}
		sql, err := schema.Roles(cfg)
		if err != nil {
			return &usageError{err}
		}
		_, err = a.world.Out.Write([]byte(sql))
		return err
	}
	return cmd
}
