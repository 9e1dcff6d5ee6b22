package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/charmbracelet/colorprofile"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/schema"
)

// World is the environment of a run.
type World struct {
	In       io.Reader
	Out, Err io.Writer
	Environ  []string   // as of os.Environ; the PG variables are read by pgx, from the process
	Ask      bool       // a user is there to confirm
	Width    func() int // of Out, if it is a terminal; 0 = it is not
	ErrWidth func() int // of Err
}

// The exit codes of all commands but check.
const (
	exitFailed      = 1
	exitUsage       = 2 // wrong arguments, or not confirmed
	exitInterrupted = 130
)

// app is one run.
type app struct {
	world    World
	out      *colorprofile.Writer // with the terminal's colours; none in a pipe
	err      io.Writer            // without secrets; colours as in out
	redactor *redactor
	global   globalFlags
}

// Run runs a command line and returns the exit code: 0, 1 if it failed, 2 if the arguments are wrong or an act was not
// confirmed, 130 if ctx interrupted it. Command check has its own.
func Run(ctx context.Context, args []string, world World) int {
	stderr := &redactor{to: world.Err}
	a := &app{
		world: world, redactor: stderr, err: colorprofile.NewWriter(stderr, world.Environ),
		out: colorprofile.NewWriter(world.Out, world.Environ),
	}
	stderr.addDSN(a.getenv("OUTBOX_DSN"))
	stderr.addSecret(a.getenv("PGPASSWORD"))
	if a.getenv("NO_COLOR") != "" {
		a.out.Profile = min(a.out.Profile, colorprofile.Ascii)
	}
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var code exitCode
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case cmd.Annotations[monitored] != "":
		return a.unknown(inFlags(cmd, err))
	case ctx.Err() != nil:
		a.complain("interrupted")
		return exitInterrupted
	case errors.As(err, &usage), errors.Is(err, admin.ErrInvalid):
		a.complain("%v", inFlags(cmd, err))
		return exitUsage
	}
	if _, problems, found := strings.Cut(err.Error(), schema.ErrSchemaChanged.Error()+": "); found {
		a.complain("%v:", schema.ErrSchemaChanged)
		for line := range strings.SplitSeq(problems, "\n") {
			a.inform("  %s", line)
		}
		return exitFailed
	}
	a.complain("%v", inFlags(cmd, err))
	return exitFailed
}

// exitCode is an error that has already been printed.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// usageError is an error caused by the arguments.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

func (a *app) getenv(name string) string {
	for _, e := range a.world.Environ {
		if key, value, _ := strings.Cut(e, "="); key == name {
			return value
		}
	}
	return ""
}
