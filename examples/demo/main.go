package demo

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

const (
	exitWrong       = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// options are the options of the command line.
type options struct {
	orders int
	over   time.Duration
	outage time.Duration
	calm   bool
	spoil  string
	log    bool
	watch  bool
}

// Main is main of an example. It does not return.
func Main(e Example) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process immediately
	if len(os.Args) == 2 && os.Args[1] == forwardArg {
		if err := forwardOnly(ctx, e, newLogger(os.Stderr)); err != nil {
			fmt.Fprintln(os.Stderr, "forwarder:", err)
			os.Exit(exitWrong)
		}
		os.Exit(0)
	}

	var o options
	flags := flag.NewFlagSet("demo-"+e.Name, flag.ContinueOnError)
	flags.IntVar(&o.orders, "orders", e.Orders, "number of orders")
	flags.DurationVar(&o.over, "for", e.Period, "time in which the orders arrive")
	flags.DurationVar(&o.outage, "outage", e.Outage, "how long the broker is down before it starts again")
	flags.BoolVar(&o.calm, "calm", false, "a good day: no outage, and no process is killed")
	flags.StringVar(&o.spoil, "spoil", "", "falsify the results, to see that the count notices: drop, double or "+
		"reverse events")
	flags.BoolVar(&o.log, "log", false, "show the log")
	flags.BoolVar(&o.watch, "observe", false, "show metrics of the day, one trace, and the page while it lasts")
	if err := flags.Parse(os.Args[1:]); err != nil || flags.NArg() > 0 || o.orders < 1 {
		if err == nil {
			flags.Usage()
		}
		os.Exit(exitUsage)
	}
	ok, err := run(ctx, e, o)
	switch {
	case ctx.Err() != nil:
		os.Exit(exitInterrupted)
	case err != nil:
		fmt.Fprintf(os.Stderr, "demo-%s: %v\n", e.Name, err)
		os.Exit(exitWrong)
	case !ok:
		os.Exit(exitWrong)
	}
	os.Exit(0)
}

func newLogger(out *os.File) watermill.LoggerAdapter {
	return watermill.NewSlogLogger(slog.New(slog.NewTextHandler(out, nil)))
}

func run(ctx context.Context, e Example, o options) (ok bool, err error) {
	log := os.Stderr
	if !o.log {
		if log, err = os.CreateTemp("", "demo-"+e.Name+"-*.log"); err != nil {
			return false, err
		}
		defer func() {
			log.Close()
			if ok || ctx.Err() != nil {
				os.Remove(log.Name())
				return
			}
			fmt.Println("The log is in", log.Name())
		}()
	}
	defer func() { err = errors.Join(err, services.StopAll()) }()

	d := &day{screen: newScreen(os.Stdout), log: log}
	if err := d.open(ctx, e, o); err != nil {
		return false, err
	}
	defer d.close()

	orders := makeOrders(o.orders)
	if err := d.live(ctx, e, o, orders); err != nil {
		return false, err
	}
	if d.watch != nil {
		if err := d.watch.show(os.Stdout); err != nil {
			return false, err
		}
	}
	found, err := d.collect(ctx, o.orders)
	if err != nil {
		return false, err
	}
	if err := found.spoil(o.spoil); err != nil {
		return false, err
	}
	t, err := found.tally()
	if err != nil {
		return false, err
	}
	return t.write(os.Stdout), nil
}
