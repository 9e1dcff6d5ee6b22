package cli

import (
	"io"
	"strings"
	"testing"
)

// TestBrokerOfTheCommandLineWins over those in the environment if a command takes one broker.
func TestBrokerOfTheCommandLineWins(t *testing.T) {
	all := []string{"OUTBOX_KAFKA=env:9092", "OUTBOX_NATS=nats://env", "OUTBOX_AMQP=amqp://env",
		"OUTBOX_BROKER_CA=none.pem"}
	for _, test := range []struct {
		args    string
		environ []string
		kafka   string
		nats    string
		amqp    string
		err     string
	}{
		{args: "forward --kafka k:9092", environ: all, kafka: "[k:9092]"},
		{args: "forward --nats nats://n", environ: all, kafka: "[]", nats: "nats://n"},
		{args: "forward --amqp amqp://a", environ: all, kafka: "[]", amqp: "amqp://a"},
		{args: "forward", environ: all[2:], kafka: "[]", amqp: "amqp://env"},
		{args: "forward", environ: all[:2], err: "both --kafka and --nats"},
		{args: "forward", environ: all, err: "--amqp is given together"},
		{args: "forward --amqp amqp://a --nats nats://n", err: "--amqp is given together"},
	} {
		a := &app{world: World{Environ: test.environ}, redactor: &redactor{to: io.Discard}, err: io.Discard}
		cmd, args, err := a.root().Find(strings.Fields(test.args))
		if err != nil {
			t.Fatal(err)
		}
		want := test.err
		if want == "" {
			want = "--log is" // read after all flags
		}
		if err := cmd.ParseFlags(append(args, "--log", "xml")); err != nil {
			t.Fatal(err)
		}
		if err := cmd.RunE(cmd, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s %q: %v, want %s", test.args, test.environ, err, want)
			continue
		}
		for name, want := range map[string]string{"kafka": test.kafka, "nats": test.nats, "amqp": test.amqp} {
			if got := cmd.Flag(name).Value.String(); test.err == "" && got != want {
				t.Errorf("%s: --%s is %q, want %q", test.args, name, got, want)
			}
		}
		if got := cmd.Flag("broker-ca").Value.String(); len(test.environ) == len(all) && got != "none.pem" {
			t.Errorf("%s: --broker-ca is %q, not the environment's", test.args, got)
		}
	}
}

// TestRabbitMQHasNoChecks: its address is not mistaken for one of Kafka.
func TestRabbitMQHasNoChecks(t *testing.T) {
	for _, b := range []brokerFlags{{amqp: "amqp://a"}, {amqp: "amqp://a", nats: "nats://n"}} {
		checkers, closeAll, err := b.checkers()
		closeAll()
		if wanted := len(b.nats) / len("nats://n"); err != nil || len(checkers) != wanted {
			t.Errorf("%d checks, %v", len(checkers), err)
		}
	}
}
