package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

type options struct {
	only                       *regexp.Regexp
	rate                       int
	baseline, stress, recovery time.Duration
}

func main() {
	if encoded := os.Getenv(workerEnv); encoded != "" {
		fmt.Fprintln(os.Stderr, beWorker(encoded))
		os.Exit(1)
	}
	o, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func parse() (o options, err error) {
	only := flag.String("only", "", "only what matches this regular `expression`, such as 'readers/' or '/river'")
	flag.IntVar(&o.rate, "rate", 500, "`messages` that are produced per second")
	flag.DurationVar(&o.baseline, "baseline", 10*time.Second, "how long nothing happens first")
	flag.DurationVar(&o.stress, "stress", 20*time.Second, "how long the stress lasts")
	flag.DurationVar(&o.recovery, "recovery", 15*time.Second, "how long messages are produced after it")
	flag.Parse()
	if flag.NArg() > 0 || o.rate < 1 || min(o.baseline, o.stress, o.recovery) < time.Second {
		return o, errors.New("use flags only; -rate is at least 1, and the others are at least 1s")
	}
	o.only, err = regexp.Compile(*only)
	return o, err
}

// run prints a line for each pair. A failure of one pair is its result, and does not stop the others.
func run(o options) (err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	defer func() { err = errors.Join(err, services.StopAll()) }()
	fmt.Printf("%d messages per second for %s, then %s of stress, then %s\n\n%s", o.rate, o.baseline, o.stress, o.recovery,
		heading())
	lost := 0
	for _, sc := range scenarios {
		for _, sys := range systems {
			if !o.only.MatchString(sc.name + "/" + sys.name) {
				continue
			}
			r, err := measure(ctx, o, sc, sys)
			if err != nil {
				return fmt.Errorf("%s/%s: %w", sc.name, sys.name, err)
			}
			fmt.Print(r.line(sc.name, sys.name))
			if sys.ours {
				lost += r.lost
			}
		}
	}
	fmt.Println(legend)
	if lost > 0 {
		return fmt.Errorf("lost %d messages", lost)
	}
	return nil
}
