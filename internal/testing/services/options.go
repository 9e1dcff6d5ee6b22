package services

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
)

// ErrNotInstalled is returned by [StartPgBouncer], [StartRabbitMQ] and [StartRedis] if the machine does not have the
// program, and by [StartKafka] and [StartKafkaCluster] if it has no usable Java or Maven.
var ErrNotInstalled = errors.New("not installed")

// Options are the settings common to all servers. The zero value is ready to use.
type Options struct {
	// Log receives one line per server with its version and address, and one every few seconds while a start waits. Nil
	// means os.Stderr; io.Discard silences it. Writes are serialized.
	Log io.Writer

	// PostgresSettings are further settings ("name=value") for a Postgres.
	PostgresSettings []string

	// InMemory keeps the data of a Postgres in memory, on Linux if 4 GB are free there. Copying databases then takes a
	// third of the CPU time.
	InMemory bool

	// KafkaSettings are further settings ("name=value") for a Kafka of one node.
	KafkaSettings []string

	// RabbitMQSettings are lines ("name=value") for the configuration file of a RabbitMQ.
	RabbitMQSettings []string

	// QuickStart compiles Kafka for a quick start instead of throughput, which takes half of the CPU time.
	QuickStart bool
}

var saying sync.Mutex

func (o Options) say(format string, args ...any) {
	w := o.Log
	if w == nil {
		w = os.Stderr
	}
	saying.Lock()
	defer saying.Unlock()
	fmt.Fprintf(w, "services: "+format+"\n", args...)
}

// InCI reports whether CI is set to a true value, where a missing service must fail the run.
func InCI() bool {
	ci, _ := strconv.ParseBool(os.Getenv("CI"))
	return ci
}
