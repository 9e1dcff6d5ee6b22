package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

// bench is one run of the program.
type bench struct {
	postgres *services.Postgres
	quick    bool
	rounds   int
	scale    float64 // factor for the numbers of messages
	begun    time.Time
	budget   budget
	figures  []figure
}

type options struct {
	quick         bool
	only          string
	pattern       *regexp.Regexp
	rounds        int
	scale         float64
	budget        time.Duration
	svg, markdown string
}

func main() {
	if worker := os.Getenv(workerEnv); worker != "" {
		os.Exit(beWorker(worker))
	}
	o, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	code, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func parse() (o options, err error) {
	flag.BoolVar(&o.quick, "quick", false,
		"only the rows that a change to the engine is likely to slow down, in fewer rounds")
	flag.StringVar(&o.only, "only", "", "only rows and figures whose name matches this regular `expression`")
	flag.IntVar(&o.rounds, "rounds", 0, "`n` rounds of each side, fewer of the slow ones; default 7, with -quick 3")
	flag.DurationVar(&o.budget, "budget", 20*time.Minute, "how long the run may take; 0 = as long as its rounds take. "+
		"Rows share it:\nrounds of noisy rows are repeated only while there is time, and such rows may not be judged")
	flag.Float64Var(&o.scale, "scale", 1, "multiply the numbers of messages by this. The floors are for 1")
	flag.StringVar(&o.svg, "svg", "", "write a chart to this `path`, such as ../docs/performance.svg")
	flag.StringVar(&o.markdown, "markdown", "", "write the result as a table of the documentation to this `path`")
	flag.Parse()
	if flag.NArg() > 0 {
		return o, errors.New("unexpected arguments: use flags")
	}
	if o.rounds < 0 || o.scale <= 0 || o.budget < 0 {
		return o, errors.New("-rounds and -budget must not be negative, and -scale must be positive")
	}
	if o.rounds == 0 {
		o.rounds = map[bool]int{false: 7, true: 3}[o.quick]
	}
	o.pattern, err = regexp.Compile(o.only)
	return o, err
}

// run returns the status to exit with, see status.
func run(o options) (code int, err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	defer func() { err = errors.Join(err, services.StopAll()) }()

	b := &bench{quick: o.quick, rounds: o.rounds, scale: o.scale, begun: time.Now(), budget: newBudget(o.budget)}
	if b.postgres, err = services.StartPostgres(ctx, services.Options{}); err != nil {
		return 1, err
	}
	machine, err := b.machine(ctx)
	if err != nil {
		return 1, err
	}
	fmt.Println(strings.Join(machine, "\n"))

	var outcomes []outcome
	groups := o.chosen(b.groups())
	figures := group{} // figures have no rounds, so their time is reserved
	for _, m := range b.measurements() {
		if o.wants(m.name, false) {
			figures.about += aboutFigure
		}
	}
	for i, g := range groups {
		b.budget.begin(slices.Concat(groups[i:], []group{figures}))
		outcomes = append(outcomes, b.measure(ctx, g, g.rows)...)
		if ctx.Err() != nil {
			return 1, ctx.Err()
		}
	}
	failed := false
	for _, m := range b.measurements() {
		if !o.wants(m.name, false) {
			continue
		}
		text := "not measured: no time left"
		if !b.budget.over() {
			if text, err = m.run(ctx); err != nil {
				text, failed = "FAILED: "+err.Error(), true
			}
		}
		b.progress("%-24s %s", m.name, text)
		b.figure(m.name, text, m.aim)
	}

	b.printTable(os.Stdout, outcomes)
	printRatios(os.Stdout, outcomes)
	if code = status(outcomes); failed {
		code = 1
	}
	return code, b.files(o, machine, outcomes)
}

// wants reports whether to measure a row or a figure.
func (o *options) wants(name string, quick bool) bool {
	return o.pattern.MatchString(name) && (quick || !o.quick)
}

// chosen returns the groups that have rows to measure, with only those rows.
func (o *options) chosen(groups []group) (chosen []group) {
	for _, g := range groups {
		g.rows = slices.DeleteFunc(slices.Clone(g.rows), func(r row) bool { return !o.wants(r.name, r.quick) })
		if len(g.rows) > 0 {
			chosen = append(chosen, g)
		}
	}
	return chosen
}

func (b *bench) files(o options, machine []string, outcomes []outcome) error {
	var errs []error
	if o.svg != "" {
		errs = append(errs, os.WriteFile(o.svg, []byte(chart(outcomes, machine[0])), 0o644))
	}
	if o.markdown != "" {
		var text strings.Builder
		b.printMarkdown(&text, machine, outcomes)
		errs = append(errs, os.WriteFile(o.markdown, []byte(text.String()), 0o644))
	}
	return errors.Join(errs...)
}

// groups returns all rows in the order in which they are measured.
func (b *bench) groups() []group {
	return []group{
		b.drainGroup(), b.slowGroup(), b.jetStreamGroup(), b.kafkaGroup(), b.rabbitMQGroup(), b.horizonGroup(),
		b.backlogGroup(), b.twoGroup(), b.hotGroup(), b.failingGroup(), b.overheadGroup(), b.inboundGroup(),
		b.latencyGroup(), b.queueGroup(), b.claimGroup(), b.claimHorizonGroup(), b.partitionsGroup(),
		b.partitionsTimedGroup(),
	}
}

// scaled applies -scale to a number of messages.
func (b *bench) scaled(n int) int { return max(int(float64(n)*b.scale), 100) }

func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1f s  %s\n", time.Since(b.begun).Seconds(), fmt.Sprintf(format, args...))
}
