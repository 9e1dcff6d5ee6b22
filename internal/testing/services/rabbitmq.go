package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// RabbitMQ is a RabbitMQ server. Its methods are safe for concurrent use.
type RabbitMQ struct {
	*daemon
	epmd *process // Erlang's name server, which a node needs to start
	url  string
}

// packagedRabbitMQ is the server's script without the wrapper that requires a certain user.
var packagedRabbitMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"

// StartRabbitMQ starts a server with a user guest. It returns [ErrNotInstalled] if the machine has no RabbitMQ or no
// Erlang. As root it runs as user postgres or else nobody. Starting takes about 15 seconds.
func StartRabbitMQ(ctx context.Context, opts Options) (*RabbitMQ, error) {
	script, err := exec.LookPath(packagedRabbitMQ)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: %w", ErrNotInstalled)
	}
	epmd, err := exec.LookPath("epmd")
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: epmd: %w", ErrNotInstalled)
	}
	as, err := unprivileged()
	if err != nil {
		return nil, fmt.Errorf("start rabbitmq: %w", err)
	}
	f, err := newFolder(as)
	if err != nil {
		return nil, fmt.Errorf("start rabbitmq: %w", err)
	}
	r := &RabbitMQ{}
	var epmdPort, distPort int
	file := func(name string) string { return filepath.Join(f.path, name) }
	r.daemon = &daemon{
		name: "rabbitmq", account: as, folder: f, opts: opts,
		stop:    syscall.SIGTERM,
		discard: syscall.SIGKILL,
		prepare: func(context.Context) (err error) {
			settings := strings.Join(opts.RabbitMQSettings, "\n") + "\n"
			if err := os.WriteFile(file("rabbitmq.conf"), []byte(settings), 0o644); err != nil {
				return err
			}
			if epmdPort, err = freePort(); err != nil {
				return err
			}
			if distPort, err = freePort(); err != nil {
				return err
			}
			cmd := exec.Command(epmd, "-port", strconv.Itoa(epmdPort), "-address", "127.0.0.1")
			r.inFolder(cmd)
			r.epmd, err = startProcess(cmd)
			return err
		},
		command: func(port int) (*exec.Cmd, error) {
			r.url = fmt.Sprintf("amqp://guest:guest@%s/", address(port))
			cmd := exec.Command(script)
			cmd.Env = []string{
				"RABBITMQ_NODENAME=outbox" + strconv.Itoa(epmdPort) + "@localhost",
				"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1", "RABBITMQ_NODE_PORT=" + strconv.Itoa(port),
				"RABBITMQ_DIST_PORT=" + strconv.Itoa(distPort),
				"ERL_EPMD_PORT=" + strconv.Itoa(epmdPort), "ERL_EPMD_ADDRESS=127.0.0.1",
				"RABBITMQ_MNESIA_BASE=" + file("mnesia"), "RABBITMQ_LOG_BASE=" + file("log"),
				"RUNNING_UNDER_SYSTEMD=true", // the script execs the server, so that signals reach it
				"RABBITMQ_ENABLED_PLUGINS_FILE=" + file("plugins"),
				"RABBITMQ_CONFIG_FILE=" + file("rabbitmq"), "RABBITMQ_CONF_ENV_FILE=" + file("no-such-file"),
				"RABBITMQ_GENERATED_CONFIG_DIR=" + file("generated"),
				// Few threads, no spinning: test machines are shared.
				"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+sbwt none +sbwtdcpu none +sbwtdio none +S 2:2 " +
					"-kernel inet_dist_use_interface {127,0,0,1}",
			}
			return cmd, nil
		},
		ready: func(ctx context.Context) error {
			conn, err := amqp091.DialConfig(r.url, amqp091.Config{Dial: amqp091.DefaultDial(readyTimeout)})
			if err != nil {
				return err
			}
			defer conn.Close()
			if name, _ := conn.Properties["cluster_name"].(string); !strings.Contains(name, strconv.Itoa(epmdPort)) {
				return errors.New("another server has this port")
			}
			ch, err := conn.Channel()
			if err != nil {
				return err
			}
			return ch.Close()
		},
	}
	if err := r.launch(ctx); err != nil {
		return nil, errors.Join(err, r.endNames())
	}
	register(r)
	opts.say("rabbitmq from %s on %s", script, address(r.port))
	return r, nil
}

// URL returns the server's URL. It stays the same across Restart.
func (r *RabbitMQ) URL() string { return r.url }

// Close ends the server for good and removes its data. Later calls do nothing.
func (r *RabbitMQ) Close() error {
	defer unregister(r)
	return errors.Join(r.daemon.Close(), r.endNames())
}

func (r *RabbitMQ) endNames() error {
	if !r.epmd.alive() {
		return nil
	}
	return r.epmd.end(os.Kill, time.Second)
}
