package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	const usage = "release check [-quick | -tests] vMAJOR.MINOR.PATCH, or release tag vMAJOR.MINOR.PATCH"
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "only what takes seconds")
	tests := flags.Bool("tests", false, "also lint, all tests and benchmarks, which take hours")
	if len(args) == 0 {
		return fmt.Errorf("nothing to do: %s", usage)
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	root, err := output(ctx, ".", nil, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	root = strings.TrimSpace(root)
	version := flags.Arg(0)
	if flags.NArg() != 1 || !isVersion(version) {
		return fmt.Errorf("no version: %q: %s", flags.Args(), usage)
	}
	switch args[0] {
	case "check":
		r, err := newRehearsal(ctx, root, version)
		if err != nil {
			return err
		}
		defer r.close()
		depth := whole
		if *quick {
			depth = quickly
		}
		if *tests {
			depth = withTests
		}
		return r.check(ctx, os.Stdout, depth)
	case "tag":
		if err := tag(ctx, root, version, time.Now()); err != nil {
			return err
		}
		tags, err := tagsOf(ctx, root, version)
		if err != nil {
			return err
		}
		fmt.Printf("tagged here; nothing is pushed: git push --atomic origin HEAD %s\n", strings.Join(tags, " "))
		return nil
	}
	return fmt.Errorf("unknown command %s: %s", args[0], usage)
}

// output runs a command and returns what it says on standard output; an error ends with what it says on both.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), env...)
	var said, all strings.Builder
	cmd.Stdout, cmd.Stderr = writers{&said, &all}, &all
	if err := cmd.Run(); err != nil {
		command := filepath.Base(name) + " " + strings.Join(args, " ")
		return said.String(), fmt.Errorf("%s: %w\n%s", command, err, lastLines(all.String()))
	}
	return said.String(), nil
}

type writers []*strings.Builder

func (w writers) Write(p []byte) (int, error) {
	for _, to := range w {
		to.Write(p)
	}
	return len(p), nil
}

func lastLines(text string) string {
	const most = 30
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}
