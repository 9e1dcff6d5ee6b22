package services

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
)

// ErrNotInstalled is returned by [StartPgBouncer], [StartRabbitMQ] and [StartRedis] where the machine has no such
// program, and by [StartKafkaCluster] where it has no usable Java or Maven.
var ErrNotInstalled = errors.New("not installed")

// Options are the settings common to all servers. The zero value is ready to use.
type Options struct {
	// Log receives one line per server, saying which one is used, and one every few seconds while it does not answer yet.
	// Nil means os.Stderr; io.Discard silences it. Writes come one at a time.
	Log io.Writer

	// PostgresSettings are further settings ("name=value") for a Postgres.
	PostgresSettings []string

	// InMemory keeps the data of a Postgres in memory, on Linux and if 4 GB are free there. Copies of databases take a
	// third of the processor's time.
	InMemory bool

	// KafkaSettings are further settings ("name=value") for a Kafka of one node.
	KafkaSettings []string

	// QuickStart has a Kafka compiled for a quick start and not for throughput, at half of the processor's
	// time.
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
