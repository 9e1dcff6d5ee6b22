package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// workerEnv holds the workerConfig of a worker process, which is this program again.
const workerEnv = "OUTBOX_SCOREBOARD_WORKER"

// workerName is the application name of workers' connections.
const workerName = "scoreboard-worker"

type workerConfig struct{ System, URL string }

// beWorker works until the process is killed. After a failure it starts again in a second, as a supervisor would.
func beWorker(encoded string) error {
	var cfg workerConfig
	if err := json.Unmarshal([]byte(encoded), &cfg); err != nil {
		return err
	}
	pool, err := newPool(cfg.URL, workerName, 20)
	if err != nil {
		return err
	}
	sys := systems[slices.IndexFunc(systems, func(s system) bool { return s.name == cfg.System })]
	for {
		if err := sys.work(context.Background(), pool); err != nil {
			fmt.Fprintf(os.Stderr, "worker of %s: %v\n", cfg.System, err)
		}
		time.Sleep(time.Second)
	}
}

func newPool(url, name string, most int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = most
	cfg.ConnConfig.RuntimeParams["application_name"] = name
	return pgxpool.NewWithConfig(context.Background(), cfg)
}

// fleet holds the worker processes of a system.
type fleet struct {
	config string
	came   func(i int)

	mu      sync.Mutex
	workers []*exec.Cmd
	reading sync.WaitGroup
}

func newFleet(sys system, url string, came func(int)) (*fleet, error) {
	config, err := json.Marshal(workerConfig{sys.name, url})
	return &fleet{config: string(config), came: came, workers: make([]*exec.Cmd, workerCount)}, err
}

const workerCount = 2

// start starts worker n.
func (f *fleet) start(n int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env, cmd.Stderr = append(os.Environ(), workerEnv+"="+f.config), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	f.workers[n] = cmd
	f.reading.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if i, err := strconv.Atoi(lines.Text()); err == nil {
				f.came(i)
			}
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.workers[n] == cmd {
			fmt.Fprintf(os.Stderr, "worker %d has ended on its own, and is missing from now on\n", n)
		}
	})
	return nil
}

// kill kills worker n if it runs.
func (f *fleet) kill(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if cmd := f.workers[n]; cmd != nil {
		f.workers[n] = nil
		_ = cmd.Process.Kill()
		_, _ = cmd.Process.Wait() // not cmd.Wait, which closes the pipe before everything is read
	}
}

func (f *fleet) stop() {
	for n := range f.workers {
		f.kill(n)
	}
	f.reading.Wait()
}
