package services

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// clusterServers is enough for a stream with three replicas.
const clusterServers = 3

// NATSCluster is a cluster of three NATS servers with JetStream, inside this process. Its methods are safe for
// concurrent use.
type NATSCluster struct {
	folder        *folder
	ports, routes [clusterServers]int

	mu      sync.Mutex
	servers []*server.Server
	closed  bool
}

// StartNATSCluster starts one, and returns when it has a leader. It keeps JetStream on disk and syncs every write.
func StartNATSCluster(ctx context.Context, opts Options) (*NATSCluster, error) {
	f, err := newFolder(nil)
	if err != nil {
		return nil, fmt.Errorf("start nats cluster: %w", err)
	}
	c := &NATSCluster{folder: f}
	c.mu.Lock()
	register(c)
	for i := range clusterServers {
		var errs [2]error
		c.ports[i], errs[0] = freePort()
		c.routes[i], errs[1] = freePort()
		err = errors.Join(err, errs[0], errs[1])
	}
	if err == nil {
		err = c.start(ctx)
	}
	c.mu.Unlock()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start nats cluster: %w", err), c.Close())
	}
	opts.say("three nats-servers %s in this process on %s", server.VERSION, c.URL())
	return c, nil
}

// start is called with mu held.
func (c *NATSCluster) start(ctx context.Context) error {
	if c.closed {
		return errors.New("already closed")
	}
	var routes []string
	for _, port := range c.routes {
		routes = append(routes, "nats-route://"+address(port))
	}
	for i := range clusterServers {
		s, err := c.startOne(i, routes)
		if err != nil {
			c.stop()
			return err
		}
		c.servers = append(c.servers, s)
	}
	return c.ready(ctx)
}

func (c *NATSCluster) startOne(i int, routes []string) (*server.Server, error) {
	s, err := server.NewServer(&server.Options{
		ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: c.ports[i],
		Cluster:   server.ClusterOpts{Name: "cluster", Host: "127.0.0.1", Port: c.routes[i]},
		Routes:    server.RoutesFromStr(strings.Join(routes, ",")),
		JetStream: true, StoreDir: filepath.Join(c.folder.path, fmt.Sprint("jetstream-", i)), SyncAlways: true,
		NoSigs: true, NoLog: true,
	})
	if err != nil {
		return nil, err
	}
	s.Start()
	return s, nil
}

// ready waits until JetStream answers, which takes a leader.
func (c *NATSCluster) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, natsPatience)
	defer cancel()
	for {
		err := (&NATS{url: c.URL()}).ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			c.stop()
			return fmt.Errorf("not ready: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// URL returns the URLs of all servers. They stay the same across Restart.
func (c *NATSCluster) URL() string {
	var urls []string
	for _, port := range c.ports {
		urls = append(urls, "nats://"+address(port))
	}
	return strings.Join(urls, ",")
}

// StopServer shuts down the server of a name: "n0", "n1" or "n2". Restart starts it again, with the others.
func (c *NATSCluster) StopServer(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.servers {
		if s.Name() == name {
			s.Shutdown()
			s.WaitForShutdown()
			return nil
		}
	}
	return fmt.Errorf("stop nats-server %s: it does not run", name)
}

// Stop shuts all servers down and keeps their data for Restart.
func (c *NATSCluster) Stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stop()
	return nil
}

// stop is called with mu held.
func (c *NATSCluster) stop() {
	for _, s := range c.servers {
		s.Shutdown()
	}
	for _, s := range c.servers {
		s.WaitForShutdown()
	}
	c.servers = nil
}

// Restart starts all servers again on the same ports and data, stopping them first if they are running, and
// returns when they have a leader.
func (c *NATSCluster) Restart(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stop()
	if err := c.start(ctx); err != nil {
		return fmt.Errorf("restart nats cluster: %w", err)
	}
	return nil
}

// Close ends the servers for good and removes their data. Later calls do nothing.
func (c *NATSCluster) Close() error {
	defer unregister(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	c.stop()
	return c.folder.Close()
}
