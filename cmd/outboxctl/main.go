// Command outboxctl looks after the tables of an outbox: it makes them, shows what is in them, repairs it, and forwards
// messages to a broker. Package cli says how, and docs/reference/outboxctl.md has the help of each command.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/millrace-go/watermill-outbox/cmd/outboxctl/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	code := cli.Run(ctx, os.Args[1:], cli.WorldOf(os.Stdin, os.Stdout, os.Stderr, os.Environ()))
	stop()
	os.Exit(code)
}
