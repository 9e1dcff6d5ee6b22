package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

// workerEnv holds the workerConfig of a worker process, which is this program again: it runs one forwarder, and replies
// with a line to each line of its standard input.
const workerEnv = "OUTBOX_BENCH_WORKER"

type workerConfig struct {
	NATS    bool // start a NATS server instead
	Listen  bool // count notifications instead
	River   bool // work on River's jobs instead
	URL     string
	N       int // maximum number of messages
	Delay   time.Duration
	Stamped bool // record when each message arrived
}

// workerResult lists the messages that reached a worker's publisher.
type workerResult struct {
	Seen        []uint64
	First, Last []int64 // for each key: index + 1 of its first and last message, 0 = none
	Stamps      []int64 // Unix nanoseconds
	Overtook    int64
	PeakKB      int64 // peak resident memory
}

// worker is the parent's end of a worker process.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startWorker(ctx context.Context, cfg workerConfig) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	w := &worker{cmd: exec.CommandContext(ctx, self)}
	w.cmd.Env = append(os.Environ(), workerEnv+"="+string(encoded))
	w.cmd.Stderr = os.Stderr
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = bufio.NewReader(out)
	return w, w.cmd.Start()
}

// ask sends a line and returns the reply.
func (w *worker) ask(command string) (string, error) {
	if _, err := io.WriteString(w.in, command+"\n"); err != nil {
		return "", fmt.Errorf("worker: %s: %w", command, err)
	}
	answer, err := w.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("worker: %s: %w", command, err)
	}
	answer = strings.TrimSuffix(answer, "\n")
	if problem, bad := strings.CutPrefix(answer, "error "); bad {
		return "", fmt.Errorf("worker: %s: %s", command, problem)
	}
	return answer, nil
}

func (w *worker) count() (int, error) {
	answer, err := w.ask("count")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(answer)
}

func (w *worker) result() (r workerResult, err error) {
	answer, err := w.ask("result")
	if err == nil {
		err = json.Unmarshal([]byte(answer), &r)
	}
	return r, err
}

// close ends the process by closing its input.
func (w *worker) close() error { return errors.Join(w.in.Close(), w.cmd.Wait()) }

// beWorker is the main function of a worker.
func beWorker(encoded string) int {
	var cfg workerConfig
	err := json.Unmarshal([]byte(encoded), &cfg)
	if err == nil && cfg.NATS {
		err = serveNATS()
	} else if err == nil && cfg.Listen {
		err = listen(cfg)
	} else if err == nil {
		err = work(cfg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		return 1
	}
	return 0
}

func work(cfg workerConfig) error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, cfg.URL)
	if err != nil {
		return err
	}
	defer pool.Close()
	d, err := open(cfg.URL, pool)
	if err != nil {
		return err
	}
	s := newSink(cfg.N)
	s.delay = cfg.Delay
	stamps := make([]int64, 0)
	if cfg.Stamped {
		stamps = make([]int64, cfg.N)
		s.stamp = func(i int) { stamps[i] = time.Now().UnixNano() }
	}
	s.first = make([]int64, keys)
	var f *forwarder.Forwarder
	stop := func() error { return nil }
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		answer := "ok"
		var err error
		switch lines.Text() {
		case "start":
			if cfg.River {
				stop, err = startRiver(ctx, pool, s)
			} else {
				f, stop, err = d.forward(ctx, s, forwarder.Config{})
			}
		case "wake":
			d.db.Wake()
		case "wait":
			err = s.wait(ctx)
		case "drain":
			err = f.Drain(ctx)
		case "count":
			answer = strconv.FormatInt(s.distinct.Load(), 10)
		case "result":
			var encoded []byte
			encoded, err = json.Marshal(s.result(stamps))
			answer = string(encoded)
		}
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		fmt.Println(answer)
	}
	return stop()
}

func (s *sink) result(stamps []int64) workerResult {
	r := workerResult{Stamps: stamps, First: s.first, Overtook: s.overtook.Load() + s.strange.Load(), PeakKB: peakKB()}
	for i := range s.seen {
		r.Seen = append(r.Seen, s.seen[i].Load())
	}
	for i := range s.last {
		r.Last = append(r.Last, s.last[i].Load())
	}
	return r
}

// peakKB returns the peak resident memory of this process; 0 on systems that do not report it.
func peakKB() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	var kb int64
	_, _ = fmt.Sscan(after, &kb)
	return kb
}
