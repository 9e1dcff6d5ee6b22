// Release tags a version, and rehearses that.
//
//	release check v0.1.0    make release-check VERSION=v0.1.0
//	release tag v0.1.0      make release-tag VERSION=v0.1.0; pushes nothing
//
// A version is one commit with a tag for each module. In that commit cmd/outboxctl requires our other modules by
// version: go install refuses a module with replace directives. The next commit restores them.
//
// The check tags a clone, serves the tagged modules from files as a proxy would, and installs from there what users
// install. With goreleaser in PATH it also builds what the release workflow publishes, into .cache/release. With an
// earlier tag it compares the API with gorelease.
package main

import (
	"context"
	"errors"
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
	if len(args) != 2 || !isVersion(args[1]) {
		return errors.New("use release check v0.1.0, or release tag v0.1.0")
	}
	root, err := output(ctx, ".", nil, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	root = strings.TrimSpace(root)
	switch args[0] {
	case "check":
		return check(ctx, root, args[1])
	case "tag":
		tags, err := tag(ctx, root, args[1], time.Now())
		if err == nil {
			fmt.Printf("tagged here; to publish: git push --atomic origin HEAD %s\n", strings.Join(tags, " "))
		}
		return err
	}
	return fmt.Errorf("unknown command %s", args[0])
}

// output runs a command and returns its standard output. An error includes the last lines of both outputs.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), env...)
	var printed, all strings.Builder
	cmd.Stdout, cmd.Stderr = writers{&printed, &all}, &all
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(all.String()), "\n")
		last := strings.Join(lines[max(0, len(lines)-30):], "\n")
		return "", fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, last)
	}
	return printed.String(), nil
}

type writers []*strings.Builder

func (w writers) Write(p []byte) (int, error) {
	for _, to := range w {
		to.Write(p)
	}
	return len(p), nil
}
