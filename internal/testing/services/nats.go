package services

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// natsPatience is how long a server in this process may take to reply: long, because a busy machine may be slow, and
// the server cannot end unnoticed.
const natsPatience = time.Minute

// NATS is a NATS server with JetStream. Its methods are safe for concurrent use.
type NATS struct {
	url    string
	folder *folder

	mu     sync.Mutex
	port   int
	server *server.Server
	closed bool
}

// StartNATS starts a server inside this process, which keeps JetStream on disk and syncs every write. A server inside
// this process cannot be killed alone, so there is no Kill: see [StartNATSProcess].
func StartNATS(ctx context.Context, opts Options) (*NATS, error) {
	f, err := newFolder(nil)
	if err != nil {
		return nil, fmt.Errorf("start nats: %w", err)
	}
	n := &NATS{folder: f}
	n.mu.Lock()
	register(n)
	for range firstAttempts {
		if n.port, err = freePort(); err != nil {
			break
		}
		if err = n.start(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	n.mu.Unlock()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start nats: %w", err), n.Close())
	}
	n.url = natsURL(n.port)
	opts.say("nats-server %s in this process on %s", server.VERSION, address(n.port))
	return n, nil
}

// start requires mu to be held.
func (n *NATS) start(ctx context.Context) error {
	if n.closed {
		return errors.New("already closed")
	}
	s, err := server.NewServer(&server.Options{
		Host:       "127.0.0.1",
		Port:       n.port,
		JetStream:  true,
		StoreDir:   filepath.Join(n.folder.path, "jetstream"),
		SyncAlways: true,
		NoSigs:     true,
		NoLog:      true,
	})
	if err != nil {
		return err
	}
	s.Start()
	if s.ReadyForConnections(natsPatience) {
		if err = natsReady(ctx, s.ClientURL(), s.Name(), natsPatience); err == nil {
			n.server = s
			return nil
		}
	}
	s.Shutdown()
	s.WaitForShutdown()
	return errors.Join(errors.New("not ready for connections"), err)
}

// natsReady makes one JetStream request to the server with this name.
func natsReady(ctx context.Context, url, name string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := nats.Connect(url, nats.Timeout(patience))
	if err != nil {
		return err
	}
	defer conn.Close()
	if found := conn.ConnectedServerName(); found != name {
		return fmt.Errorf("another server has this port: %q", found)
	}
	js, err := conn.JetStream(nats.Context(ctx))
	if err != nil {
		return err
	}
	_, err = js.AccountInfo()
	return err
}

func natsURL(port int) string { return "nats://" + address(port) }

// URL returns the server's URL. It stays the same across Restart.
func (n *NATS) URL() string { return n.url }

// Stop shuts the server down and keeps its data for Restart. It does nothing if the server is not running.
func (n *NATS) Stop() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stop()
	return nil
}

// stop requires mu to be held.
func (n *NATS) stop() {
	if n.server != nil {
		n.server.Shutdown()
		n.server.WaitForShutdown()
		n.server = nil
	}
}

// Restart starts the server again on the same port and data, stopping it first if it is running.
func (n *NATS) Restart(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stop()
	if err := n.start(ctx); err != nil {
		return fmt.Errorf("restart nats: %w", err)
	}
	return nil
}

// Close ends the server for good and removes its data. Later calls do nothing.
func (n *NATS) Close() error {
	defer unregister(n)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed = true
	n.stop()
	return n.folder.Close()
}
