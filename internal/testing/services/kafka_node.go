package services

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// kafkaNode is a broker and controller, alone or in a cluster.
type kafkaNode struct {
	java, jars  string
	args        []string // arguments of java
	further     []string // settings
	cluster     string   // its id
	id          int      // node id, from 1
	controllers []int    // ports of all nodes; a single node chooses its own
	replication int      // the broker's port for other nodes
	port        int      // the broker's port for clients, for which the properties are written
}

func (n *kafkaNode) daemon(name string, opts Options) (*daemon, error) {
	f, err := newFolder(nil)
	if err != nil {
		return nil, err
	}
	d := &daemon{
		name: name, folder: f, opts: opts,
		stop:    syscall.SIGTERM,
		discard: syscall.SIGKILL,
	}
	d.prepare = func(ctx context.Context) error { return n.format(ctx, d) }
	d.command = func(port int) (*exec.Cmd, error) {
		if n.port != port {
			n.port = port
			if err := n.configure(d); err != nil {
				return nil, err
			}
		}
		args := slices.Concat(n.args, []string{"-Dlog4j2.configurationFile=" + n.file(d, logging)})
		if len(n.controllers) > 1 {
			args = append(args, "-Djdk.net.hosts.file="+n.file(d, hosts))
		}
		args = append(args, "-cp", filepath.Join(n.jars, "*"), "kafka.Kafka", n.file(d, properties))
		return exec.Command(n.java, args...), nil
	}
	d.ready = func(context.Context) error { return kafkaReady(address(n.port), n.cluster) }
	return d, nil
}

const (
	properties = "server.properties"
	logging    = "log4j2.properties"
	hosts      = "hosts"
)

func (n *kafkaNode) file(d *daemon, name string) string { return filepath.Join(d.folder.path, name) }

// format writes the storage's id and version, but no ports: any port works.
func (n *kafkaNode) format(ctx context.Context, d *daemon) error {
	for name, content := range map[string][]byte{
		properties: n.settings(dataOf(d.folder), 1, slices.Repeat([]int{2}, len(n.controllers))),
		logging:    []byte(kafkaLogging),
		hosts:      n.hosts(),
	} {
		if err := os.WriteFile(n.file(d, name), content, 0o644); err != nil {
			return err
		}
	}
	cmd := exec.Command(n.java, "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", filepath.Join(n.jars, "*"),
		"kafka.tools.StorageTool", "format", "-t", n.cluster, "-c", n.file(d, properties))
	d.inFolder(cmd)
	if err := runCommand(ctx, cmd); err != nil {
		return fmt.Errorf("format storage: %w", err)
	}
	return nil
}

func (n *kafkaNode) configure(d *daemon) error {
	if len(n.controllers) == 1 {
		var err error
		if n.controllers[0], err = freePort(); err != nil {
			return err
		}
	}
	return os.WriteFile(n.file(d, properties), n.settings(dataOf(d.folder), n.port, n.controllers), 0o644)
}

// host returns the host name by which other nodes, and the node itself, find a node: in a cluster a name that each node
// resolves to a different address.
func (n *kafkaNode) host(id int) string {
	if len(n.controllers) == 1 {
		return "127.0.0.1"
	}
	return fmt.Sprint("node", id)
}

// hosts returns the node's hosts file. It resolves no other names.
func (n *kafkaNode) hosts() []byte {
	self, _ := os.Hostname()
	known := fmt.Appendf(nil, "127.0.0.1 localhost %s\n", self)
	for i := range n.controllers {
		known = fmt.Appendf(known, "%s %s\n", linkHost(n.id-1, i), n.host(i+1))
	}
	return known
}

// settings returns the production defaults except for what a single node needs, and for short broker sessions: with the
// default a killed broker waits nine seconds for its own old session to expire.
func (n *kafkaNode) settings(dir string, port int, controllers []int) []byte {
	var voters []string
	for i, c := range controllers {
		voters = append(voters, fmt.Sprintf("%d@%s:%d", i+1, n.host(i+1), c))
	}
	replicas, controller, between := len(controllers), controllers[n.id-1], "PLAINTEXT"
	listeners := fmt.Sprintf("PLAINTEXT://%s,CONTROLLER://%s", address(port), address(controller))
	advertised := "PLAINTEXT://" + address(port)
	if replicas > 1 {
		between = "REPLICATION"
		listeners += ",REPLICATION://" + address(n.replication)
		advertised += fmt.Sprintf(",CONTROLLER://%[1]s:%[2]d,REPLICATION://%[1]s:%[3]d", n.host(n.id), controller,
			n.replication)
	}
	return fmt.Appendf(nil, `process.roles=broker,controller
node.id=%[1]d
controller.quorum.voters=%[2]s
listeners=%[3]s
advertised.listeners=%[4]s
controller.listener.names=CONTROLLER
inter.broker.listener.name=%[5]s
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT
log.dirs=%[6]s
num.partitions=4
auto.create.topics.enable=true
default.replication.factor=%[7]d
min.insync.replicas=%[8]d
offsets.topic.replication.factor=%[7]d
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=%[7]d
transaction.state.log.min.isr=%[8]d
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=%[7]d
share.coordinator.state.topic.min.isr=%[8]d
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
%[9]s
`, n.id, strings.Join(voters, ","), listeners, advertised, between, filepath.ToSlash(dir), replicas, replicas/2+1,
		strings.Join(n.further, "\n"))
}

// newClusterID returns an id in Kafka's format. One that begins with a dash would be parsed as a command-line option.
func newClusterID() string {
	for {
		var id [16]byte
		_, _ = rand.Read(id[:])
		if s := base64.RawURLEncoding.EncodeToString(id[:]); s[0] != '-' {
			return s
		}
	}
}

// kafkaLogging makes the broker log its actions: by default it logs errors only.
const kafkaLogging = `rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %m%n
`
