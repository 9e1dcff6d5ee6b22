package services

import (
	"context"
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
)

// NATSProcess is a NATS server with JetStream in its own process, which can be killed and frozen. Its methods are safe
// for concurrent use.
type NATSProcess struct{ *daemon }

// StartNATSProcess starts a server. It keeps JetStream on disk and syncs every write.
func StartNATSProcess(ctx context.Context, opts Options) (*NATSProcess, error) {
	d, err := natsNodeConfig{Name: "alone"}.daemon(opts)
	if err != nil {
		return nil, fmt.Errorf("start nats: %w", err)
	}
	if err := d.launch(ctx); err != nil {
		return nil, err
	}
	n := &NATSProcess{d}
	opts.say("nats-server %s on %s", server.VERSION, n.URL())
	return n, nil
}

// URL returns the server's URL. It stays the same across Restart.
func (n *NATSProcess) URL() string { return natsURL(n.port) }
