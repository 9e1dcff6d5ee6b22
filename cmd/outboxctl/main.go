// Command outboxctl looks after the tables of an outbox: it makes them, shows what is in them, repairs it, and forwards messages to
// a broker. Package cli says how, and docs/outboxctl.md has the help of each command.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/millrace-go/watermill-outbox/cmd/outboxctl/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	code := cli.Run(ctx, os.Args[1:], cli.World{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ(),
		Ask: term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stderr.Fd())), Width: width(os.Stdout), ErrWidth: width(os.Stderr),
	})
	stop()
	os.Exit(code)
}

// width returns how wide the terminal is now that a file is, 0 if it is none.
func width(file *os.File) func() int {
	return func() int {
		columns, _, err := term.GetSize(int(file.Fd()))
		if err != nil {
			return 0
		}
		return columns
	}
}
