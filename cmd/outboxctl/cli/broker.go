package cli

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/xdg-go/scram"

	"github.com/millrace-go/watermill-outbox/amqp"
	"github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/kafka"
	"github.com/millrace-go/watermill-outbox/nats"
)

// brokerFlags select a broker and its login. Each may come from the environment.
type brokerFlags struct {
	kafka                   []string
	nats                    string
	amqp                    string // only for forward
	tls                     bool
	caFile, cert, key       string
	user, mechanism         string
	kafkaPassword, natsCred string

	both bool // Kafka and NATS may be given together
}

var (
	brokerFlagNames = []string{"kafka", "nats", "amqp"}
	loginFlagNames  = []string{
		"kafka-user", "kafka-mechanism", "nats-creds", "broker-tls", "broker-ca", "broker-cert", "broker-key",
	}
)

func (b *brokerFlags) bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&b.kafka, "kafka", nil, "`host:port` of Kafka brokers, separated by commas")
	flags.StringVar(&b.user, "kafka-user", "", "SASL user; put the password in OUTBOX_KAFKA_PASSWORD")
	flags.StringVar(&b.mechanism, "kafka-mechanism", sarama.SASLTypePlaintext,
		"SASL mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
	flags.StringVar(&b.nats, "nats", "", "`URL` of NATS servers, separated by commas")
	flags.StringVar(&b.natsCred, "nats-creds", "", "`file` with NATS credentials")
	flags.BoolVar(&b.tls, "broker-tls", false, "use TLS; NATS also does if its URL or server requires it")
	flags.StringVar(&b.caFile, "broker-ca", "", "`file` with CA certificates (default: the system's)")
	flags.StringVar(&b.cert, "broker-cert", "", "`file` with the client certificate")
	flags.StringVar(&b.key, "broker-key", "", "`file` with its key")
	_ = cmd.RegisterFlagCompletionFunc("kafka-mechanism",
		cobra.FixedCompletions([]string{sarama.SASLTypePlaintext, sarama.SASLTypeSCRAMSHA256, sarama.SASLTypeSCRAMSHA512},
			cobra.ShellCompDirectiveNoFileComp))
}

// read sets flags that were not given from the environment. If only one broker is allowed, one on the command line
// replaces those in the environment.
func (b *brokerFlags) read(a *app, cmd *cobra.Command) error {
	flags, names := cmd.Flags(), slices.Clone(loginFlagNames)
	if b.both || !slices.ContainsFunc(brokerFlagNames, flags.Changed) {
		for _, name := range brokerFlagNames {
			if flags.Lookup(name) != nil { // only forward has --amqp
				names = append(names, name)
			}
		}
	}
	if err := a.fromEnv(flags, names...); err != nil {
		return err
	}
	b.kafkaPassword = a.getenv("OUTBOX_KAFKA_PASSWORD")
	a.redactor.addSecret(b.kafkaPassword)
	a.redactor.addBroker(b.nats)
	a.redactor.addBroker(b.amqp)
	a.redactor.addBroker(strings.Join(b.kafka, ",")) // Kafka addresses have no passwords, but a user may put one there
	switch {
	case b.amqp != "" && (len(b.kafka) > 0 || b.nats != ""):
		return usagef("--amqp is given together with --kafka or --nats: use one")
	case len(b.kafka) > 0 && b.nats != "" && !b.both:
		return usagef("both --kafka and --nats are given: use one")
	}
	return nil
}

func (b *brokerFlags) given() bool { return len(b.kafka) > 0 || b.nats+b.amqp != "" }

// missing returns an error if no broker is given.
func (b *brokerFlags) missing() error {
	if !b.given() {
		return usagef("no broker given: use --kafka host:9092 or --nats nats://host:4222, " +
			"or set OUTBOX_KAFKA or OUTBOX_NATS; " +
			"outboxctl forward also takes --amqp amqp://host:5672/ and OUTBOX_AMQP")
	}
	return nil
}

// publisher connects to the broker, in the background.
func (b *brokerFlags) publisher(logger watermill.LoggerAdapter) (message.Publisher, error) {
	if b.nats != "" {
		options, err := b.natsOptions()
		if err != nil {
			return nil, err
		}
		return nats.NewPublisher(nats.PublisherConfig{URL: b.nats, Options: options}, logger)
	}
	if b.amqp != "" {
		cfg, err := b.amqpConfig()
		if err != nil {
			return nil, err
		}
		return amqp.NewPublisher(amqp.PublisherConfig{Config: cfg}, logger)
	}
	return kafka.NewPublisher(kafka.PublisherConfig{Brokers: b.kafka, Configure: b.configureKafka}, logger)
}

// amqpConfig publishes to durable queues that are named after the topics.
func (b *brokerFlags) amqpConfig() (wmamqp.Config, error) {
	url := b.amqp
	tlsConfig, err := b.tlsConfig()
	if rest, plain := strings.CutPrefix(url, "amqp://"); plain && tlsConfig != nil {
		url = "amqps://" + rest
	}
	cfg := wmamqp.NewDurableQueueConfig(url)
	cfg.Connection.TLSConfig = tlsConfig
	return cfg, err
}

func (b *brokerFlags) natsOptions() ([]natsgo.Option, error) {
	options := []natsgo.Option{natsgo.Name("outboxctl")}
	if b.natsCred != "" {
		options = append(options, natsgo.UserCredentials(b.natsCred))
	}
	cfg, err := b.tlsConfig()
	if cfg != nil {
		options = append(options, natsgo.Secure(cfg))
	}
	return options, err
}

func (b *brokerFlags) configureKafka(c *sarama.Config) error {
	c.ClientID = "outboxctl"
	cfg, err := b.tlsConfig()
	c.Net.TLS.Enable, c.Net.TLS.Config = cfg != nil, cfg
	if b.user != "" {
		c.Net.SASL.Enable, c.Net.SASL.User, c.Net.SASL.Password = true, b.user, b.kafkaPassword
		c.Net.SASL.Mechanism = sarama.SASLMechanism(b.mechanism)
		hash := map[string]scram.HashGeneratorFcn{
			sarama.SASLTypeSCRAMSHA256: scram.SHA256, sarama.SASLTypeSCRAMSHA512: scram.SHA512,
		}[b.mechanism]
		c.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: hash} }
		if hash == nil && b.mechanism != sarama.SASLTypePlaintext {
			return usagef("--kafka-mechanism is %q: use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", b.mechanism)
		}
	}
	return err
}

// tlsConfig returns nil if no flag requires TLS.
func (b *brokerFlags) tlsConfig() (*tls.Config, error) {
	if !b.tls && b.caFile+b.cert+b.key == "" {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if b.caFile != "" {
		pem, err := os.ReadFile(b.caFile)
		if err != nil {
			return nil, usagef("--broker-ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usagef("--broker-ca: %s contains no certificate", b.caFile)
		}
	}
	if b.cert+b.key != "" {
		pair, err := tls.LoadX509KeyPair(b.cert, b.key)
		if err != nil {
			return nil, usagef("--broker-cert and --broker-key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// scramClient adapts a SCRAM library to sarama.
type scramClient struct {
	hash scram.HashGeneratorFcn
	talk *scram.ClientConversation
}

func (s *scramClient) Begin(user, password, authzID string) error {
	client, err := s.hash.NewClient(user, password, authzID)
	if err != nil {
		return fmt.Errorf("scram: %w", err)
	}
	s.talk = client.NewConversation()
	return nil
}

func (s *scramClient) Step(challenge string) (string, error) { return s.talk.Step(challenge) }
func (s *scramClient) Done() bool                            { return s.talk.Done() }

// brokerLog reads the messages that a broker holds.
type brokerLog interface {
	broker.TopicReader
	broker.Checker
	Close() error
}

// checkers returns all given brokers, and a function that closes them.
func (b *brokerFlags) checkers() (all []broker.Checker, closeAll func(), err error) {
	var logs []brokerLog
	closeAll = func() {
		for _, log := range logs {
			_ = log.Close()
		}
	}
	one := *b
	for _, given := range []brokerFlags{{nats: b.nats}, {kafka: b.kafka}} {
		if one.nats, one.kafka, one.amqp = given.nats, given.kafka, ""; !one.given() {
			continue
		}
		log, err := one.log()
		if err != nil {
			return nil, closeAll, err
		}
		logs, all = append(logs, log), append(all, log)
	}
	return all, closeAll, nil
}

// log returns a reader of the broker's messages. It connects on first use.
func (b *brokerFlags) log() (brokerLog, error) {
	if b.nats != "" {
		options, err := b.natsOptions()
		if err != nil {
			return nil, err
		}
		return nats.NewTopicReader(nats.TopicReaderConfig{URL: b.nats, Options: options}, nil)
	}
	return kafka.NewTopicReader(kafka.TopicReaderConfig{Brokers: b.kafka, Configure: b.configureKafka}, nil)
}
