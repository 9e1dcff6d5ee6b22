package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/millrace-go/watermill-outbox/admin"
)

func (a *app) topics() *cobra.Command {
	cmd := &cobra.Command{Use: "topics", Short: "Topics of the outbox: list, pause, resume"}
	cmd.AddCommand(a.listTopics(),
		a.topic("pause", "Paused", "Stop publishing and handling a topic until it is resumed",
			`Stop a topic until it is resumed. Forwarders and dispatchers notice within two seconds; publishes and
handlers in progress finish. Keys whose next message is of the topic wait.`, (*admin.Admin).Pause),
		a.topic("resume", "Resumed", "End an operator's pause",
			"End an operator's pause. Forwarders keep a topic paused while its broker is unavailable, "+
				"and resume it on their own.", (*admin.Admin).Resume))
	return cmd
}

func (a *app) listTopics() *cobra.Command {
	var exact bool
	cmd := &cobra.Command{
		Use: "list", Short: "List topics that have pending or dead messages, are paused, or were published recently",
	}
	cmd.Flags().BoolVar(&exact, "exact", false, "count every row; takes seconds with millions of rows")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.with(cmd.Context(), "", func(ad *admin.Admin) error {
			s, err := ad.Stats(cmd.Context(), admin.StatsConfig{Exact: exact})
			if err != nil {
				return err
			}
			return a.show(map[string]any{"topics": s.Topics}, func() error { return topicGrid("", s.Topics).print(a) })
		})
	}
	return cmd
}

// topicAct is the JSON result of an act on a topic.
type topicAct struct {
	Action string `json:"action"`
	DryRun bool   `json:"dry_run"`
	Topic  string `json:"topic"`
}

func (a *app) topic(
	name, done, short, long string, do func(_ *admin.Admin, _ context.Context, topic, reason string) error,
) *cobra.Command {
	var act actFlags
	cmd := &cobra.Command{
		Use: name + " TOPIC", Short: short, Long: long, Args: one("topic", "its name, as printed by topics list"),
	}
	act.bind(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		topic := args[0]
		answer := topicAct{Action: name, DryRun: act.dryRun, Topic: topic}
		return a.with(cmd.Context(), act.actor, func(ad *admin.Admin) error {
			read := func() ([]admin.Pause, error) { return a.pausesOf(cmd.Context(), ad, name, topic) }
			if act.dryRun {
				if _, err := read(); err != nil {
					return err
				}
				return a.show(answer, func() error { return a.say("%s would change topic %s.", title(name), topic) })
			}
			var pauses []admin.Pause
			var unknown error
			if name == "resume" { // after the act the ended pause is unknown
				pauses, unknown = read()
			}
			if err := act.confirm(cmd.Context(), a, fmt.Sprintf("%s topic %s?", title(name), topic)); err != nil {
				return err
			}
			if err := do(ad, cmd.Context(), topic, act.reason); err != nil {
				return wrongAct(err)
			}
			said := fmt.Sprintf("%s topic %s.", done, clean(topic))
			if name == "resume" && unknown == nil && !a.resumed(topic, pauses) {
				said = fmt.Sprintf("Topic %s was not paused by an operator.", clean(topic))
			}
			if err := a.show(answer, func() error { return a.say("%s", said) }); err != nil {
				return err
			}
			if name == "pause" { // an urgent pause does not wait for a slow count
				_, unknown = read()
			}
			if unknown != nil {
				a.inform("could not read the state of topic %s: %v", topic, unknown)
			}
			return nil
		})
	}
	return cmd
}

// pausesOf returns the pauses of a topic, and warns if no topic has this name, which may be misspelled. An operator's
// pause does not prove that the topic exists.
func (a *app) pausesOf(ctx context.Context, ad *admin.Admin, act, topic string) ([]admin.Pause, error) {
	s, err := ad.Stats(ctx, admin.StatsConfig{})
	if err != nil {
		return nil, err
	}
	more := false // the count may be incomplete
	var pauses []admin.Pause
	for _, t := range s.Topics {
		if t.Topic == topic {
			pauses = t.PausedBy
			if t.Ready.N+t.Failing.N+t.Delayed.N+t.Dead.N > 0 || t.Rate > 0 ||
				slices.ContainsFunc(pauses, func(p admin.Pause) bool { return act == "resume" || p.By != "operator" }) {
				return pauses, nil
			}
		}
		more = more || t.Ready.More || t.Delayed.More
	}
	if !more {
		a.inform("topic %s has no messages pending, and none was published recently: check the name", topic)
	}
	return pauses, nil
}

// resumed reports whether a pause was ended, and prints those that continue.
func (a *app) resumed(topic string, pauses []admin.Pause) (ours bool) {
	for _, p := range pauses {
		if p.By == "operator" {
			ours = true
			continue
		}
		a.inform("topic %s is still paused by forwarder %s, which resumes it on its own: %s", topic, p.By, p.Reason)
	}
	return ours
}
