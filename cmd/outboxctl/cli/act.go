package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/words"
)

// actFlags are the flags of all commands that change something.
type actFlags struct {
	actor, reason string
	yes, dryRun   bool
}

func (f *actFlags) bind(a *app, cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.actor, "actor", "", "name for the audit log (default: your user name)")
	flags.StringVar(&f.reason, "reason", "", "reason for the audit log")
	flags.BoolVarP(&f.yes, "yes", "y", false, "do not ask for confirmation")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print what would change, and change nothing")
	cmd.PreRun = func(*cobra.Command, []string) {
		if f.actor == "" {
			f.actor = a.user()
		}
	}
}

// user is the user of the terminal. A container may have neither the variable nor a name for the user.
func (a *app) user() string {
	if name := cmp.Or(a.getenv("USER"), a.getenv("USERNAME")); name != "" { // USERNAME on Windows
		return name
	}
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return fmt.Sprintf("uid %d", os.Getuid())
}

// confirm asks for confirmation.
func (f *actFlags) confirm(ctx context.Context, a *app, question string) error {
	switch {
	case f.yes:
		return nil
	case !a.world.Ask || a.isJSON():
		return usagef("not confirmed: %s there is no terminal to confirm on: use --yes, or --dry-run for a "+
			"preview", question)
	}
	if _, err := fmt.Fprintf(a.err, "%s [y/N] ", clean(question)); err != nil {
		return err
	}
	answers := make(chan string, 1)
	go func() { // a read of a terminal cannot be interrupted; it ends with the process
		answer, _ := bufio.NewReader(a.world.In).ReadString('\n')
		answers <- strings.ToLower(strings.TrimSpace(answer))
	}()
	select {
	case <-ctx.Done():
		a.inform("")
		return ctx.Err()
	case answer := <-answers:
		if answer == "y" || answer == "yes" {
			return nil
		}
		return usagef("not confirmed: nothing was changed")
	}
}

// verb is an act on messages, as a command.
type verb struct {
	admin.Verb
	name, short, example string
	do                   func(*admin.Admin, context.Context, admin.Action) (admin.Result, error)
}

// verbOf is the command of a verb for a table.
func verbOf(v admin.Verb, in admin.Table, name, example string) verb {
	short, _, _ := strings.Cut(v.Does[in], ". ")
	return verb{v, name, sentence(name) + strings.TrimSuffix(short, "."), example,
		func(a *admin.Admin, ctx context.Context, act admin.Action) (admin.Result, error) {
			return a.Do(ctx, v.Name, act)
		}}
}

// sentence is the first sentence of the help of an act: Retry messages now.
func sentence(name string) string {
	verb, how, _ := strings.Cut(name, "-")
	return strings.TrimSpace(title(verb)+" messages "+how) + ". "
}

// table returns the commands on the messages of a table.
func (a *app) table(in admin.Table, use, what string, examples map[string]string) *cobra.Command {
	cmd := &cobra.Command{Use: use}
	cmd.AddCommand(a.list(in), a.get(in))
	names := []string{"list", "show"}
	for _, v := range admin.Verbs(in) {
		if !v.Heads { // skip applies to keys
			name := strings.ReplaceAll(v.Name, "_", "-")
			names = append(names, name)
			cmd.AddCommand(a.act(in, verbOf(v, in, name, examples[name]), " [ID...]"))
		}
	}
	cmd.Short = what + ": " + strings.Join(names, ", ")
	return cmd
}

// acted is the JSON result of an act.
type acted struct {
	Action string       `json:"action"`
	DryRun bool         `json:"dry_run"`
	Filter admin.Filter `json:"filter"`
	admin.Result
}

// act returns the command of a verb. args describes its arguments; "" = none.
func (a *app) act(in admin.Table, v verb, args string) *cobra.Command {
	var f filterFlags
	var act actFlags
	var limit int
	cmd := &cobra.Command{Use: v.name + args, Short: v.short, Long: sentence(v.name) + v.Does[in], Example: v.example,
		Args: cobra.ArbitraryArgs}
	f.bind(cmd, in)
	f.bindStates(cmd, v.States[in], v.States[in][0])
	act.bind(a, cmd)
	cmd.Flags().BoolVar(&f.filter.All, "all", false, "select all messages, if no other flag selects any")
	cmd.Flags().IntVar(&limit, "limit", 0, "change at most this many messages, oldest first; 0 = no limit")
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		filter, err := f.get(ids)
		if err != nil {
			return err
		}
		if v.Stored != "" && act.reason == "" && !act.dryRun {
			return usagef("no reason given: it is stored with the messages: use --reason")
		}
		return a.with(cmd.Context(), act.actor, func(ad *admin.Admin) error {
			return a.doAct(cmd.Context(), ad, in, v, &act, admin.Action{Filter: filter, Limit: limit, Reason: act.reason})
		})
	}
	return cmd
}

// doAct runs an act dry, asks for confirmation, and performs it.
func (a *app) doAct(ctx context.Context, ad *admin.Admin, in admin.Table, v verb, f *actFlags, act admin.Action) error {
	answer := acted{Action: v.name, DryRun: f.dryRun, Filter: act.Filter}
	act.DryRun = true
	bar := a.progress(admin.Count{More: true})
	act.Progress = func(_ context.Context, r admin.Result) {
		if n := max(r.Compared, r.Matched.N+r.NoDeadLetter); n > 0 {
			bar.set(n)
		}
	}
	tried, err := v.do(ad, ctx, act)
	bar.end()
	if err != nil {
		return wrongAct(err)
	}
	answer.Result = tried
	a.withoutDeadLetter(v, tried)
	var unmatched error
	if anyUnmatched(act, tried) {
		unmatched = exitCode(exitFailed)
	}
	if unmatched != nil || tried.Matched.N == 0 {
		a.otherStates(ctx, ad, v, act.Filter)
	}
	if f.dryRun || tried.Matched.N == 0 {
		said := a.show(answer, func() error {
			if !f.dryRun {
				return a.say("Nothing to do: no message of the %s matches (%s).", in, describe(act.Filter))
			}
			return a.say("%s would change %s of the %s (%s).", title(v.name), countMessages(tried.Matched), in,
				describe(act.Filter))
		})
		return cmp.Or(said, unmatched)
	}
	question := fmt.Sprintf("%s %s of the %s (%s)?", title(v.name), countMessages(tried.Matched), in,
		describe(act.Filter))
	if err := f.confirm(ctx, a, question); err != nil {
		return err
	}
	if !f.yes {
		act.Preview = tried.Preview // only the messages that were confirmed
	}
	bar = a.progress(tried.Matched)
	act.DryRun, act.Progress = false, func(_ context.Context, r admin.Result) { bar.set(r.Matched.N) }
	result, err := v.do(ad, ctx, act)
	bar.end()
	if err != nil && result.AuditID == 0 {
		return wrongAct(err)
	}
	if err != nil { // a batch may have been committed although its reply was lost
		if e := entryOf(ctx, ad, result.AuditID); e != nil {
			result.Touched, result.Skipped = e.Result.Touched, e.Result.Skipped
		}
	}
	answer.Result = result
	said := a.show(answer, func() error {
		more := ""
		if result.Skipped > 0 {
			more = fmt.Sprintf(" Skipped %s that were locked or changed meanwhile: run it again.", words.Number(result.Skipped))
		}
		if left := tried.Matched.N - result.Matched.N; act.Preview != "" && left > 0 && err == nil {
			more += fmt.Sprintf(" %s no longer matched.", countMessages(admin.Count{N: left}))
		}
		return a.say("%s %s; entry %d of the audit log.%s", v.Past, countMessages(admin.Count{N: result.Touched}),
			result.AuditID, more)
	})
	if err == nil && said == nil {
		return unmatched
	}
	return errors.Join(err, said)
}

// anyUnmatched reports whether an ID matches no message. With a limit that is unknown.
func anyUnmatched(act admin.Action, r admin.Result) bool {
	ids := slices.Compact(slices.Sorted(slices.Values(act.Filter.IDs)))
	return act.Limit == 0 && int64(len(ids)) > r.Matched.N+r.NoDeadLetter
}

// withoutDeadLetter prints the number of skipped messages without a dead letter.
func (a *app) withoutDeadLetter(v verb, r admin.Result) {
	if r.NoDeadLetter > 0 {
		a.inform("%s %s no dead letter in the outbox any more", countMessages(admin.Count{N: r.NoDeadLetter}),
			map[bool]string{true: "has", false: "have"}[r.NoDeadLetter == 1])
	}
}

// otherStates prints why named messages do not match.
func (a *app) otherStates(ctx context.Context, ad *admin.Admin, v verb, f admin.Filter) {
	const most = 5
	states, also := f.States, ""
	if len(states) == 0 {
		states = v.States[f.In][:1]
		if more := v.States[f.In][1:]; len(more) > 0 {
			also = ", and with --state for " + list(more)
		}
	}
	if v.name == "skip" { // skip names no messages
		f.States = states
		if fit, err := ad.List(ctx, f, admin.Page{Limit: 1}); err == nil && len(fit.Messages) > 0 {
			a.inform("only the first message of a key can be skipped: see outboxctl keys blocked")
		}
		return
	}
	for _, id := range f.IDs[:min(len(f.IDs), most)] {
		m, err := ad.Get(ctx, f.In, id)
		switch {
		case errors.Is(err, admin.ErrNotFound):
			a.inform("no message %s in the %s", id, f.In)
		case err != nil:
			return // this is only a hint: the act has its own result
		case !slices.Contains(states, m.State):
			a.inform("message %s is %s: %s is for %s%s", id, m.State, v.name, list(states), also)
		default:
			f.IDs = []string{id}
			if fit, err := ad.List(ctx, f, admin.Page{Limit: 1}); err == nil && len(fit.Messages) == 0 {
				a.inform("message %s does not match the flags", id)
			}
		}
	}
}

// wrongAct recognises errors caused by the arguments, and names the flags.
func wrongAct(err error) error {
	switch {
	case errors.Is(err, admin.ErrEmptyFilter):
		return usagef("no messages selected: give ids, flags such as --topic, --group or --after, or --all")
	case errors.Is(err, admin.ErrNoActor):
		return usagef("no actor for the audit log: set --actor")
	}
	return err
}

// title formats the name of a command as the beginning of a sentence.
func title(s string) string { return strings.ToUpper(s[:1]) + strings.ReplaceAll(s[1:], "-", " ") }
