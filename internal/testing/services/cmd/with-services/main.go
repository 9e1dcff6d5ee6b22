// With-services runs a command with servers.
//
//	with-services [-postgres] [-kafka] [-nats] -- command [argument ...]
//
// It starts the requested servers, sets OUTBOX_POSTGRES_URL, OUTBOX_KAFKA_BROKERS and OUTBOX_NATS_URL for the command,
// passes signals on to it, and stops the servers when the command has ended. Its exit status is the command's, 128 plus
// the signal's number if a signal ended the command, 125 if a server did not start, and 127 if the command did not.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

const (
	exitUsage     = 2
	exitNoService = 125
	exitNoCommand = 127
)

func main() { os.Exit(run()) }

func run() (code int) {
	postgres := flag.Bool("postgres", false, "start Postgres and set OUTBOX_POSTGRES_URL")
	kafka := flag.Bool("kafka", false, "start Kafka and set OUTBOX_KAFKA_BROKERS")
	nats := flag.Bool("nats", false, "start NATS and set OUTBOX_NATS_URL")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: with-services [-postgres] [-kafka] [-nats] -- command [argument ...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		return exitUsage
	}

	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer func() {
		if err := services.StopAll(); err != nil {
			complain(err)
		}
	}()

	type started struct {
		env []string
		err error
	}
	starting := make(chan started, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		env, err := start(ctx, *postgres, *kafka, *nats)
		starting <- started{env, err}
	}()
	var ready started
	select {
	case ready = <-starting:
	case s := <-signals:
		cancel()
		<-starting
		return signalled(s)
	}
	if ready.err != nil {
		complain(ready.err)
		return exitNoService
	}

	cmd := exec.Command(flag.Arg(0), flag.Args()[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), ready.env...)
	if err := cmd.Start(); err != nil {
		complain(err)
		return exitNoCommand
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s)
		case err := <-ended:
			return status(err)
		}
	}
}

func start(ctx context.Context, postgres, kafka, nats bool) (env []string, err error) {
	var opts services.Options
	if postgres {
		p, err := services.StartPostgres(ctx, opts)
		if err != nil {
			return nil, err
		}
		env = append(env, "OUTBOX_POSTGRES_URL="+p.URL())
	}
	if kafka {
		k, err := services.StartKafka(ctx, opts)
		if err != nil {
			return nil, err
		}
		env = append(env, "OUTBOX_KAFKA_BROKERS="+strings.Join(k.Brokers(), ","))
	}
	if nats {
		n, err := services.StartNATS(ctx, opts)
		if err != nil {
			return nil, err
		}
		env = append(env, "OUTBOX_NATS_URL="+n.URL())
	}
	return env, nil
}

func status(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		complain(err)
		return 1
	}
	if code := exit.ExitCode(); code >= 0 {
		return code
	}
	if w, ok := exit.Sys().(syscall.WaitStatus); ok {
		return signalled(w.Signal())
	}
	return 1
}

func signalled(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return 1
}

func complain(err error) { fmt.Fprintln(os.Stderr, "with-services:", err) }
