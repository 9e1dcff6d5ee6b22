package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/charmbracelet/colorprofile"
	"github.com/spf13/cobra"
)

// TestDocument fails when the help of a command is not what docs/reference/outboxctl.md says. If that is meant, `make
// outboxctl` writes it.
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
		t.Error("docs/reference/outboxctl.md is not what the commands say: run make outboxctl")
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
		hiding: &hiding{to: io.Discard},
	}
	root := a.root()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	var all func(*cobra.Command)
	all = func(cmd *cobra.Command) {
		if !cmd.IsAvailableCommand() || cmd.Name() == "help" {
			return
		}
		cmd.InitDefaultHelpFlag()
		var help bytes.Buffer
		cmd.SetOut(&help)
		if err := cmd.Help(); err != nil {
			t.Fatal(err)
		}
		text := help.String()
		if cmd != root { // they are the same everywhere
			text, _, _ = strings.Cut(text, "\nGlobal Flags:")
		}
		fmt.Fprintf(doc, "\n## %s\n\n```text\n%s\n```\n", cmd.CommandPath(), strings.TrimSpace(text))
		for _, c := range cmd.Commands() {
			if cmd.Name() != "completion" { // four shells, all the same
				all(c)
			}
		}
	}
	all(root)
	return doc.String()
}

func noColours(w io.Writer) *colorprofile.Writer { return colorprofile.NewWriter(w, nil) }

// TestDocumentsNameCommandsThatExist: each outboxctl command of the README and of docs/ is one, with flags and
// arguments that it takes.
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
		written, _, _ := strings.Cut(string(text), "\n## outboxctl") // from there on by the commands themselves
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
				hiding: &hiding{to: io.Discard},
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
