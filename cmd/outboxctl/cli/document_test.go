package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/charmbracelet/colorprofile"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

// TestDocument fails if docs/reference/outboxctl.md differs from the help of the commands. If intended, run `make
// outboxctl`.
func TestDocument(t *testing.T) {
	const file = "../../../docs/reference/outboxctl.md"
	want := document(t)
	if os.Getenv("OUTBOX_WRITE_DOCUMENT") != "" {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != want {
		t.Error("docs/reference/outboxctl.md differs from the help of the commands: run make outboxctl")
	}
}

func document(t *testing.T) string {
	intro, err := os.ReadFile("testdata/document.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := bytes.NewBuffer(intro)
	a := &app{
		world: World{Err: io.Discard, Out: io.Discard}, out: noColours(io.Discard), err: io.Discard,
		redactor: &redactor{to: io.Discard},
	}
	root := a.root()
	groups := []flagGroup{
		{"changes", []string{"actor", "dry-run", "reason", "yes"}, pflag.NewFlagSet("", pflag.ContinueOnError)},
		{
			"selection", []string{"after", "all", "before", "consumer", "error", "group", "key", "limit", "source", "topic"},
			pflag.NewFlagSet("", pflag.ContinueOnError),
		},
		{"lists", []string{"limit", "page"}, pflag.NewFlagSet("", pflag.ContinueOnError)},
		{
			"broker", []string{
				"broker-ca", "broker-cert", "broker-key", "broker-tls", "kafka", "kafka-mechanism", "kafka-user", "nats",
				"nats-creds",
			},
			pflag.NewFlagSet("", pflag.ContinueOnError),
		},
	}
	var commands []*cobra.Command
	var all func(*cobra.Command)
	all = func(cmd *cobra.Command) {
		if cmd.IsAvailableCommand() && cmd.Name() != "help" {
			if cmd == root || !cmd.HasSubCommands() { // the others only group commands
				commands = append(commands, cmd)
			}
			for _, c := range cmd.Commands() {
				all(c)
			}
		}
	}
	all(root)
	// Together they have all common flags.
	for _, name := range []string{"reconcile", "inbox requeue", "queue requeue", "outbox list"} {
		cmd, _, err := root.Find(strings.Fields(name))
		if err != nil {
			t.Fatal(err)
		}
		list := name == "outbox list" // its limit is the number of printed messages
		for _, g := range groups {
			cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
				ofGroup := f.Name != "limit" || list == (g.name == "lists")
				if ofGroup && slices.Contains(g.names, f.Name) && g.flags.Lookup(f.Name) == nil {
					g.flags.AddFlag(f)
				}
			})
		}
	}
	doc.WriteString("\n## Common flags\n\nCommands name the groups that they have, such as `flags: changes`. Acts on " +
		"messages have changes and selection, lists have selection and lists.\n\n```text\n")
	for i, g := range groups {
		fmt.Fprintf(doc, "%s%s:\n%s", strings.Repeat("\n", min(i, 1)), g.name, g.flags.FlagUsages())
	}
	doc.WriteString("```\n")
	describeCommand(doc, root, groups)
	doc.WriteString("\n## Short commands\n\nActs on messages take IDs or flags for selection.\n\n")
	rows, of := []string{}, map[string][]string{} // commands by the rest of their rows
	for _, cmd := range commands {
		if rest, ok := inARow(cmd, groups); ok {
			if of[rest] == nil {
				rows = append(rows, rest)
			}
			of[rest] = append(of[rest], "`"+strings.TrimSuffix(use(cmd), " [ID...]")+"`")
		}
	}
	for _, rest := range rows {
		fmt.Fprintf(doc, "- %s: %s\n", strings.Join(of[rest], ", "), rest)
	}
	for _, cmd := range commands {
		if _, ok := inARow(cmd, groups); cmd != root && !ok {
			describeCommand(doc, cmd, groups)
		}
	}
	return doc.String()
}

// use is a command with its arguments, without the name of the program.
func use(cmd *cobra.Command) string {
	return strings.TrimPrefix(strings.TrimSuffix(cmd.UseLine(), " [flags]"), "outboxctl ")
}

// inARow returns effect and flags of a command on messages, or of another one with a short help, for a list.
func inARow(cmd *cobra.Command, groups []flagGroup) (rest string, ok bool) {
	text := strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short))
	effect := strings.TrimPrefix(strings.Join(strings.Fields(text), " "), sentence(cmd.Name()))
	for _, example := range strings.Split(cmd.Example, "\n") {
		if example = strings.TrimSpace(example); example != "" {
			effect += " `" + example + "`"
		}
	}
	var flags []string
	if cmd.HasParent() && slices.Contains([]string{"outbox", "inbox", "queue"}, cmd.Parent().Name()) {
		for _, name := range []string{"state", "payload"} {
			if f := cmd.Flags().Lookup(name); f != nil {
				flags = append(flags, "`--"+name+"`: "+strings.TrimPrefix(f.Usage, "`states`, separated by commas: "))
			}
		}
		return withFlags(effect, flags), true
	}
	own, common := flagsOf(cmd, groups)
	own.VisitAll(func(f *pflag.Flag) {
		name, usage := pflag.UnquoteUsage(f)
		flags = append(flags, "`"+strings.TrimSpace("--"+f.Name+" "+name)+"`: "+
			strings.TrimPrefix(usage, "states, separated by commas: "))
	})
	return withFlags(effect, append(flags, common...)),
		cmd.HasParent() && len(flags) < 2 && !strings.Contains(text, "\n\n")
}

func withFlags(effect string, flags []string) string {
	if len(flags) == 0 {
		return effect
	}
	return strings.TrimSuffix(effect, ".") + ". Flags: " + strings.Join(flags, "; ")
}

// flagGroup is a group of flags shared by several commands.
type flagGroup struct {
	name  string
	names []string
	flags *pflag.FlagSet
}

// describeCommand writes the help of a command, with common flags by the name of their group.
func describeCommand(doc *bytes.Buffer, cmd *cobra.Command, groups []flagGroup) {
	text := strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short))
	fmt.Fprintf(doc, "\n## %s\n\n```text\n%s\n", cmd.CommandPath(), text)
	if cmd == cmd.Root() {
		usage := cmd.UsageString()
		_, usage, _ = strings.Cut(usage, "\nFlags:\n") // the rest of the page lists the commands
		usage, _, _ = strings.Cut(usage, "Use \"outboxctl")
		fmt.Fprintf(doc, "\n%s\n```\n", strings.TrimRight(usage, "\n"))
		return
	}
	if args := strings.TrimPrefix(use(cmd), strings.TrimPrefix(cmd.CommandPath(), "outboxctl ")); args != "" &&
		cmd.Example == "" {
		fmt.Fprintf(doc, "\n  %s%s\n", cmd.CommandPath(), args)
	}
	if cmd.Example != "" {
		fmt.Fprintf(doc, "\n%s\n", strings.TrimRight(cmd.Example, "\n"))
	}
	own, common := flagsOf(cmd, groups)
	var fields []string
	if cmd.Name() == "forward" {
		own, fields = withoutFields(own, reflect.TypeFor[forwarder.Config]())
	}
	if own.HasFlags() {
		fmt.Fprintf(doc, "\n%s", own.FlagUsages())
	}
	if len(common) > 0 {
		fmt.Fprintf(doc, "\n  flags: %s\n", strings.Join(common, ", "))
	}
	doc.WriteString("```\n")
	if len(fields) > 0 {
		fmt.Fprintf(doc, "\nFields of [forwarder.Config](configuration.md#forwarderconfig): %s.\n",
			strings.Join(fields, ", "))
	}
}

// withoutFields removes the flags that set a field of that name and type, and returns their names.
func withoutFields(flags *pflag.FlagSet, config reflect.Type) (rest *pflag.FlagSet, fields []string) {
	rest = pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.VisitAll(func(f *pflag.Flag) {
		_, found := config.FieldByNameFunc(func(name string) bool {
			return strings.EqualFold(name, strings.ReplaceAll(f.Name, "-", ""))
		})
		if _, is := f.Value.(*days); found && !is { // days have values of their own
			fields = append(fields, "`--"+f.Name+"`")
		} else {
			rest.AddFlag(f)
		}
	})
	return rest, fields
}

// flagsOf returns a command's own flags, and the names of the groups of its common flags.
func flagsOf(cmd *cobra.Command, groups []flagGroup) (own *pflag.FlagSet, common []string) {
	own, has := pflag.NewFlagSet("", pflag.ContinueOnError), map[string]bool{}
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		for _, g := range groups {
			if same := g.flags.Lookup(f.Name); same != nil && same.Usage == f.Usage {
				has[g.name] = true
				return
			}
		}
		if f.Name != "help" {
			own.AddFlag(f)
		}
	})
	for _, g := range groups {
		if has[g.name] {
			common = append(common, g.name)
		}
	}
	return own, common
}

func noColours(w io.Writer) *colorprofile.Writer { return colorprofile.NewWriter(w, nil) }

// TestDocumentsNameCommandsThatExist: the outboxctl commands in the README and docs/ exist, with their flags and
// arguments.
func TestDocumentsNameCommandsThatExist(t *testing.T) {
	pages, err := filepath.Glob("../../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile("(?m)(?:^|`|: )(?:OUTBOX_\\w+=\\S+ )*outboxctl( [a-z][^`\n]*)")
	word := regexp.MustCompile(`'[^']*'|\S+`)
	found := 0
	for _, page := range append(pages, "../../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		written, _, _ := strings.Cut(string(text), "\n## outboxctl") // the rest is generated
		for _, match := range commands.FindAllStringSubmatch(written, -1) {
			line, _, _ := strings.Cut(match[1], " #")
			line, _, _ = strings.Cut(line+" ", " | ") // a pipe, or the end of a cell
			var args []string
			for _, w := range word.FindAllString(line, -1) {
				if w != "..." || strings.HasPrefix(args[len(args)-1], "--") {
					args = append(args, strings.Trim(w, "'"))
				}
			}
			a := &app{
				world: World{Err: io.Discard, Out: io.Discard}, out: noColours(io.Discard), err: io.Discard,
				redactor: &redactor{to: io.Discard},
			}
			root := a.root()
			root.InitDefaultCompletionCmd()
			cmd, rest, err := root.Find(args)
			if err == nil {
				err = cmd.ParseFlags(rest)
			}
			if err == nil && cmd.Runnable() {
				err = cmd.ValidateArgs(cmd.Flags().Args())
			}
			if found++; err != nil {
				t.Errorf("%s: outboxctl%s: %v", filepath.Base(page), line, err)
			}
		}
	}
	if found < 30 {
		t.Errorf("only %d commands were found", found)
	}
}
