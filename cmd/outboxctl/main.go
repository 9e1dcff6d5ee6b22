// Command outboxctl creates, inspects and repairs the tables of an outbox, and forwards messages to a broker. The code
// is in package cli; docs/reference/outboxctl.md has the help of each command.
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
