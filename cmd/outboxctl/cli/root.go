package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace-go/watermill-outbox/admin"
)

// globalFlags are the flags of all commands.
type globalFlags struct {
	dsn, output string
	tables      map[string]string
	timeout     time.Duration
}

// root returns the root command.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "outboxctl",
		Short: "Operate the tables of an outbox, an inbox and a queue",
		Long: `Create, inspect and repair the tables of an outbox, an inbox and a queue, and publish messages.

If something is wrong, begin with outboxctl doctor: it reports problems and their cures.

The database comes from --dsn, else OUTBOX_DSN, else PGHOST, PGDATABASE, PGSERVICE and the like.

Commands that change messages count them and ask first, then change only these (of 10,000 or more, those
written before the question), and write to the audit log.

Exit codes: 0 success; 1 failure, or an ID matches no message; 2 wrong arguments, or not confirmed;
130 interrupted (Ctrl-C), after printing the result so far.`,
		Version:           version(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: a.prepare,
	}
	root.SetIn(a.world.In)
	root.SetOut(a.out)
	root.SetErr(a.err)
	flags := root.PersistentFlags()
	flags.StringVar(&a.global.dsn, "dsn", "", "connection `string`; safer in OUTBOX_DSN")
	flags.StringToStringVar(&a.global.tables, "tables", nil,
		"`names` of tables, such as schema=shop,outbox=events; also lanes, forwarders, migrations, inbox, queue, "+
			"audit, idempotency (env OUTBOX_TABLES)")
	flags.Lookup("tables").DefValue = "" // otherwise help shows []
	flags.StringVarP(&a.global.output, "output", "o", "table", "`table` for people, or json for scripts")
	flags.DurationVar(&a.global.timeout, "timeout", 10*time.Second, "limit for connecting and for each statement; "+
		"import, export: for each wait for a lock; migrate: for connecting; 0 = none")
	_ = root.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddGroup(&cobra.Group{ID: "inspect", Title: "Inspect:"}, &cobra.Group{ID: "repair", Title: "Inspect and repair:"},
		&cobra.Group{ID: "run", Title: "Set up and run:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("inspect", a.stats(), a.doctor(), a.check(), a.find(), a.audit())
	add("repair", a.table(admin.Outbox, "outbox", "Messages to publish", map[string]string{
		"requeue": "  outboxctl outbox requeue 42 43\n  outboxctl outbox requeue --topic orders --error 'unknown topic' " +
			"--reason 'the topic exists now'",
		"replay": "  outboxctl outbox replay --topic orders --after 2h --dry-run",
	}), a.errors(), a.keys(), a.topics(),
		a.table(admin.Inbox, "inbox", "Messages that a Router's handlers have handled", nil),
		a.table(admin.Queue, "queue", "Messages stored first and processed later", nil), a.reconcile())
	add("run", a.migrate(), a.clean(), a.partitions(), a.forward(), a.imports(), a.exports(), a.serve(), a.version())
	strict(root)
	return root
}

// one requires exactly one argument.
func one(what, how string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("wrong number of arguments: give one %s: %s", what, how)
		}
		return nil
	}
}

// prepare checks the flags of all commands.
func (a *app) prepare(cmd *cobra.Command, _ []string) error {
	a.redactor.addDSN(a.global.dsn)
	if a.global.output != "table" && a.global.output != "json" {
		return usagef("--output is %q: use table or json", a.global.output)
	}
	if err := a.fromEnv(cmd.Flags(), "tables"); err != nil {
		return err
	}
	return nil
}

// fromEnv sets flags that were not given from the environment: --dead-letter-topic from OUTBOX_DEAD_LETTER_TOPIC.
func (a *app) fromEnv(flags *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		value := a.getenv("OUTBOX_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
		if value == "" || flags.Changed(name) {
			continue
		}
		if err := flags.Set(name, value); err != nil {
			return usagef("environment: %w", err)
		}
	}
	return nil
}

// strict makes every command refuse unknown arguments with a usage error.
func strict(cmd *cobra.Command) {
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
	}
	cmd.Args = func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usagef("%w; %s", err, cure(c, args))
		}
		return nil
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.RunE = func(c *cobra.Command, args []string) error {
			_ = c.Help()
			return usagef("%s: no command given: use one of those above", c.CommandPath())
		}
	}
	for c := range slices.Values(cmd.Commands()) {
		strict(c)
	}
}

// cure returns the hint for arguments unknown to c: commands of that name elsewhere, or of c with a similar name, or
// the help of c.
func cure(c *cobra.Command, args []string) string {
	help := "see " + c.CommandPath() + " --help"
	if !c.HasSubCommands() || len(args) == 0 {
		return help
	}
	paths := commandsNamed(c.Root(), args[0])
	if paths == nil {
		c.SuggestionsMinimumDistance = 2
		for _, name := range c.SuggestionsFor(args[0]) {
			paths = append(paths, c.CommandPath()+" "+name)
		}
	}
	if paths == nil {
		return help
	}
	return "did you mean " + strings.Join(paths, ", or ") + "?"
}

// commandsNamed returns the paths of the commands under c with that name.
func commandsNamed(c *cobra.Command, name string) (paths []string) {
	for child := range slices.Values(c.Commands()) {
		if child.Name() == name || child.HasAlias(name) {
			paths = append(paths, child.CommandPath())
		}
		paths = append(paths, commandsNamed(child, name)...)
	}
	return paths
}
