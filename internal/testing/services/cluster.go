package services

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
)

// clusterNodes is enough for three replicas, and for a majority without one of them.
const clusterNodes = 3

// Node is one server of a cluster, in its own process. Its methods are safe for concurrent use.
type Node struct {
	*daemon
	name  string
	index int
	links *links
}

// Name returns the node's name in the cluster.
func (n *Node) Name() string { return n.name }

// Address returns the address for clients, as host:port.
func (n *Node) Address() string { return address(n.port) }

// Data returns the folder with all its data. Change it only while the node is stopped.
func (n *Node) Data() string { return dataOf(n.folder) }

func dataOf(f *folder) string { return filepath.Join(f.path, "data") }

// Isolate cuts the server off from the others until Join, while clients still reach it. Connections stay open, but pass
// no data. It needs Linux.
func (n *Node) Isolate() error { return n.links.set(n.index, false) }

// Join reconnects an isolated server.
func (n *Node) Join() error { return n.links.set(n.index, true) }

// cluster is servers that start together: none is ready before most of them run. Its methods are safe for concurrent
// use.
type cluster struct {
	nodes   []*Node
	links   links
	closing sync.Once
}

// add adds a server to a cluster that is not launched yet. The others find it at these ports.
func (c *cluster) add(name string, d *daemon, ports ...int) error {
	n := &Node{daemon: d, name: name, index: len(c.nodes), links: &c.links}
	c.nodes = append(c.nodes, n)
	for _, port := range ports {
		if err := c.links.connect(n.index, port); err != nil {
			return err
		}
	}
	return nil
}

// launch starts all servers for the first time, or none.
func (c *cluster) launch(ctx context.Context) error {
	err := c.each(func(n *Node) error { return n.launch(ctx) })
	if err != nil {
		return errors.Join(err, c.Close())
	}
	return nil
}

func (c *cluster) each(do func(*Node) error) error {
	errs := make([]error, len(c.nodes))
	var all sync.WaitGroup
	for i, n := range c.nodes {
		all.Go(func() { errs[i] = do(n) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Node returns the server with this name, or nil.
func (c *cluster) Node(name string) *Node {
	for _, n := range c.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// Nodes returns all servers.
func (c *cluster) Nodes() []*Node { return slices.Clone(c.nodes) }

// Stop ends all servers gracefully and keeps their data for Restart.
func (c *cluster) Stop() error { return c.each((*Node).Stop) }

// Kill ends all servers like a crash of all their machines, except that the operating systems' caches survive.
func (c *cluster) Kill() error { return c.each((*Node).Kill) }

// Restart starts all servers again on the same ports and data, stopping them first if they are running, and returns
// when all of them reply.
func (c *cluster) Restart(ctx context.Context) error {
	return c.each(func(n *Node) error { return n.Restart(ctx) })
}

// Close ends all servers for good and removes their data. Later calls do nothing.
func (c *cluster) Close() error {
	err := c.each((*Node).Close)
	c.closing.Do(c.links.close)
	return err
}
