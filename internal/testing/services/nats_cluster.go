package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/nats-io/nats-server/v2/server"
)

// natsNode in the environment turns a program that imports this package into a NATS server, because a server inside the
// test process could not be killed.
const natsNode = "OUTBOX_SERVICES_NATS_NODE"

func init() {
	if spec := os.Getenv(natsNode); spec != "" {
		fmt.Fprintln(os.Stderr, serveNATS(spec))
		os.Exit(1)
	}
}

// natsNodeConfig configures such a process.
type natsNodeConfig struct {
	Name, Folder string
	Port, Route  int
	Routes       []string // to the other nodes
}

func (c natsNodeConfig) command() (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = []string{natsNode + "=" + string(spec)}
	return cmd, nil
}

// serveNATS returns when the server has ended on its own; signals end the process.
func serveNATS(spec string) error {
	var c natsNodeConfig
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		return err
	}
	options := &server.Options{
		ServerName: c.Name, Host: "127.0.0.1", Port: c.Port,
		JetStream: true, StoreDir: c.Folder, SyncAlways: true, Logtime: true,
	}
	if len(c.Routes) > 0 {
		options.Routes = server.RoutesFromStr(strings.Join(c.Routes, ","))
		options.Cluster = server.ClusterOpts{
			Name: "cluster", Host: "127.0.0.1", Port: c.Route,
			Advertise: "127.0.0.1:1", // nothing listens there: others must not bypass the links
		}
	}
	s, err := server.NewServer(options)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	s.Start()
	s.WaitForShutdown()
	return errors.New("shut down")
}

// NATSCluster is a cluster of three NATS servers with JetStream, "n0", "n1" and "n2", each in its own process. Its
// methods are safe for concurrent use.
type NATSCluster struct{ cluster }

// StartNATSCluster starts a cluster, and returns when it has a leader. It keeps JetStream on disk and syncs every
// write.
func StartNATSCluster(ctx context.Context, opts Options) (*NATSCluster, error) {
	c := &NATSCluster{}
	err := c.add(opts)
	if err == nil {
		err = c.launch(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start nats cluster: %w", err), c.Close())
	}
	opts.say("three nats-servers %s on %s", server.VERSION, c.URL())
	return c, nil
}

func (c *NATSCluster) add(opts Options) error {
	routes := make([]int, clusterNodes)
	for i := range routes {
		var err error
		if routes[i], err = freePort(); err != nil {
			return err
		}
	}
	for i, route := range routes {
		n := natsNodeConfig{Name: fmt.Sprint("n", i), Route: route}
		for j, other := range routes {
			if j != i {
				n.Routes = append(n.Routes, "nats-route://"+linkAddress(i, j, other))
			}
		}
		d, err := n.daemon(opts)
		if err != nil {
			return err
		}
		if err := c.cluster.add(n.Name, d, route); err != nil {
			return err
		}
	}
	return nil
}

func (c natsNodeConfig) daemon(opts Options) (*daemon, error) {
	f, err := newFolder(nil)
	if err != nil {
		return nil, err
	}
	c.Folder = dataOf(f)
	return &daemon{
		name: "nats-" + c.Name, folder: f, opts: opts,
		stop:    syscall.SIGTERM,
		discard: syscall.SIGKILL,
		prepare: func(context.Context) error { return nil },
		command: func(port int) (*exec.Cmd, error) {
			c.Port = port
			return c.command()
		},
		ready: func(ctx context.Context) error { return natsReady(ctx, natsURL(c.Port), c.Name, readyTimeout) },
	}, nil
}

// URL returns the URLs of all servers. They stay the same across Restart.
func (c *NATSCluster) URL() string {
	var urls []string
	for _, n := range c.nodes {
		urls = append(urls, natsURL(n.port))
	}
	return strings.Join(urls, ",")
}
