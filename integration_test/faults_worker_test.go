//go:build unix

package integration_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
)

// worker is a worker process, as seen by its parent.
type worker struct {
	world *crashWorld
	cfg   childConfig
	cmd   *exec.Cmd
	log   *logTail
	gone  chan struct{} // closed when the process and all its calls have ended
	stop  chan struct{} // closed to end it gracefully

	mu       sync.Mutex
	passed   map[string]int // number of passings, by step
	fatal    string         // the step at which it ends
	skip     int            // passings of that step to survive
	reached  chan struct{}  // closed when it reaches that step
	wanted   bool           // its end is expected
	exit     error
	running  chan struct{}
	killedAt time.Time
}

// start runs a worker process and waits until it works.
func (w *crashWorld) start(cfg childConfig) *worker {
	w.t.Helper()
	p := w.spawn(cfg, "", 0)
	p.await(p.running, "running")
	return p
}

// startFor runs a worker process that ends at the step after passing it skip times.
func (w *crashWorld) startFor(step string, skip int, cfg childConfig) *worker {
	w.t.Helper()
	return w.spawn(cfg, step, skip)
}

func (w *crashWorld) spawn(cfg childConfig, fatal string, skip int) *worker {
	w.t.Helper()
	w.spawned++
	cfg.Name = fmt.Sprintf("worker-%d-%s", w.spawned, cfg.Handle)
	cfg.URL = w.h.url
	if cfg.Handle == "pgbouncer" {
		if w.pooler == "" {
			w.pooler = throughPgBouncer(w.t, w.h.url)
		}
		cfg.URL = w.pooler + "&default_query_exec_mode=exec"
	}
	ours, theirs, err := socketPair()
	require.NoError(w.t, err)
	defer theirs.Close()
	child := newProcess(w.t, "worker", cfg)
	p := &worker{
		world: w, cfg: cfg, cmd: child.cmd, log: child.log,
		gone: make(chan struct{}), stop: make(chan struct{}), running: make(chan struct{}),
		passed: map[string]int{}, fatal: fatal, skip: skip, reached: make(chan struct{}),
	}
	p.cmd.ExtraFiles = []*os.File{theirs}
	if err := p.cmd.Start(); err != nil {
		ours.Close()
		require.NoError(w.t, err)
	}
	server := rpc.NewServer()
	require.NoError(w.t, server.RegisterName("Parent", &Parent{p}))
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.ServeConn(ours)
	}()
	w.mu.Lock()
	w.workers = append(w.workers, p)
	w.mu.Unlock()
	go func() {
		err := p.cmd.Wait()
		p.mu.Lock()
		p.exit = err
		if !p.wanted {
			w.fail("%s ended unexpectedly: %v", p.cfg.Name, err)
		}
		p.mu.Unlock()
		if text := p.log.String(); strings.Contains(text, "DATA RACE") || strings.Contains(text, "panic:") {
			w.fail("%s: %s", p.cfg.Name, text)
		}
		close(p.gone)
		w.source.release(p)
		<-served
	}()
	return p
}

func socketPair() (ours net.Conn, theirs *os.File, err error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fds[0]), "child")
	defer f.Close()
	theirs = os.NewFile(uintptr(fds[1]), "parent")
	if ours, err = net.FileConn(f); err != nil {
		theirs.Close()
	}
	return ours, theirs, err
}

// kill ends the process as a crash would.
func (p *worker) kill() {
	p.mu.Lock()
	p.wanted, p.killedAt = true, time.Now()
	p.mu.Unlock()
	_ = p.cmd.Process.Kill()
	<-p.gone
}

// shutDown ends the process gracefully.
func (p *worker) shutDown() {
	p.world.t.Helper()
	p.mu.Lock()
	p.wanted = true
	p.mu.Unlock()
	close(p.stop)
	p.world.source.release(p)
	select {
	case <-p.gone:
		require.NoError(p.world.t, p.exit, "%s: %s", p.cfg.Name, p.log)
	case <-time.After(patience):
		p.world.t.Fatalf("%s does not stop: %s", p.cfg.Name, p.log)
	}
}

// await waits until the channel is closed, and fails the test if the process ends before.
func (p *worker) await(c <-chan struct{}, what string) {
	p.world.t.Helper()
	select {
	case <-c:
	case <-p.gone:
		p.world.t.Fatalf("%s ended before %s: %v: %s", p.cfg.Name, what, p.exit, p.log)
	case <-time.After(patience):
		p.mu.Lock()
		defer p.mu.Unlock()
		p.world.t.Fatalf("%s was not %s within %s; passed %v: %s", p.cfg.Name, what, patience, p.passed, p.log)
	}
}

func (p *worker) ended() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

func (p *worker) stopping() bool {
	select {
	case <-p.stop:
		return true
	default:
		return p.ended()
	}
}

// at records that the process reached a step. If it is the fatal step, at returns only after the end of the process.
func (p *worker) at(step string, n int) {
	p.mu.Lock()
	first := p.passed[step] == 0
	p.passed[step] += n
	end := step == p.fatal
	if end && p.skip > 0 {
		p.skip--
		end = false
	}
	if end {
		select {
		case <-p.reached:
		default:
			close(p.reached)
		}
	}
	p.mu.Unlock()
	if step == "running" && first {
		close(p.running)
	}
	if end {
		<-p.gone
	}
}

func (p *worker) timesAt(step string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed[step]
}

// Parent has the methods that a worker process calls.
type Parent struct{ worker *worker }

// Passing is a step that was passed n times.
type Passing struct {
	Step string
	N    int
}

func (p *Parent) At(passing Passing, _ *int) error {
	p.worker.at(passing.Step, passing.N)
	return nil
}

func (p *Parent) UntilStop(int, *int) error {
	select {
	case <-p.worker.stop:
	case <-p.worker.gone:
	}
	return nil
}

func (p *Parent) Take(_ int, o *Order) (err error) {
	*o, err = p.worker.world.source.take(p.worker)
	return err
}

func (p *Parent) Ack(o Order, _ *int) error {
	p.worker.world.source.ack(p.worker, o)
	return nil
}

func (p *Parent) Nack(o Order, _ *int) error {
	select { // a broker that redelivers immediately would only burn CPU
	case <-time.After(20 * time.Millisecond):
	case <-p.worker.gone:
	}
	p.worker.world.source.nack(p.worker, o)
	return nil
}

func (p *Parent) Publish(c Copy, _ *int) error {
	return p.worker.world.broker.publish(p.worker, c)
}

// logTail keeps the end of a process's output.
type logTail struct {
	mu   sync.Mutex
	text bytes.Buffer
}

const maxLogTail = 16 << 10

func (l *logTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if over := l.text.Len() + len(p) - 2*maxLogTail; over > 0 {
		l.text.Next(min(l.text.Len(), maxLogTail))
	}
	return l.text.Write(p)
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text.String()
	return text[max(0, len(text)-maxLogTail):]
}

// Copy is a message that a forwarder publishes.
type Copy struct {
	UUID, Topic, Key string
	Payload          []byte
}

// broker records the publishes of all forwarders in one order, and outlives them. It checks the order of each key as
// messages arrive: the first copies of a key's events must arrive in the order of their numbers, so a missing number
// was lost or overtaken.
type broker struct {
	mu          sync.Mutex
	arrived     map[string]time.Time // first copies, by UUID
	uuids       map[event]string
	deadLetters map[string]bool
	last        map[string]int64    // number of the last event, by key
	history     map[string][]string // by key, to investigate failures
	copies      int
	wrong       []string

	// answer decides the result of a publish; it may block. The message arrives if answer calls arrive, whatever it
	// returns.
	answer func(w *worker, c Copy, arrive func()) error
}

func newBroker() *broker {
	return &broker{
		arrived: map[string]time.Time{}, uuids: map[event]string{}, deadLetters: map[string]bool{}, last: map[string]int64{},
		history: map[string][]string{},
		answer:  func(_ *worker, _ Copy, arrive func()) error { arrive(); return nil },
	}
}

// flaky is an answer of a broker that fails now and then, before or after accepting the message.
func flaky(_ *worker, _ Copy, arrive func()) error {
	switch n := rand.IntN(100); {
	case n < 3:
		return fmt.Errorf("rejected")
	case n < 5:
		return fmt.Errorf("unavailable")
	case n < 8:
		arrive()
		return fmt.Errorf("rejected although it arrived")
	}
	arrive()
	return nil
}

func (b *broker) publish(w *worker, c Copy) error {
	b.mu.Lock()
	answer := b.answer
	b.mu.Unlock()
	return answer(w, c, func() {
		b.arrive(w, c)
		w.at("landed", 1) // the answer does not arrive if the worker ends here
	})
}

func (b *broker) arrive(w *worker, c Copy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, again := b.arrived[c.UUID]; again {
		b.copies++
	} else {
		b.arrived[c.UUID] = time.Now()
	}
	if c.Topic == deadLetterTopic {
		b.deadLetters[c.UUID] = true
		return
	}
	var e event
	if err := json.Unmarshal(c.Payload, &e); err != nil || e.Key != c.Key {
		b.fail("message %s has payload %q and key %q", c.UUID, c.Payload, c.Key)
		return
	}
	b.history[e.Key] = append(b.history[e.Key], fmt.Sprintf("%s %s: %d", time.Now().Format("05.000"), w.cfg.Name, e.N))
	if first, known := b.uuids[e]; known && first != c.UUID {
		b.fail("event %v was published as %s and as %s", e, first, c.UUID)
	}
	b.uuids[e] = c.UUID
	switch last := b.last[e.Key]; {
	case e.N < 1:
		b.fail("event %v of a rolled-back savepoint was published", e)
	case e.N > last+1:
		b.fail("key %s: event %d came after %d: %v", e.Key, e.N, last, b.history[e.Key])
		b.last[e.Key] = e.N
	case e.N == last+1:
		b.last[e.Key] = e.N
	}
}

// fail requires mu to be held.
func (b *broker) fail(format string, args ...any) {
	b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
}

func (b *broker) answers(answer func(*worker, Copy, func()) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = answer
}

// duplicates returns the number of messages that arrived more than once.
func (b *broker) duplicates() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.copies
}

// arrivals returns when each message arrived first, by UUID.
func (b *broker) arrivals() map[string]time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.arrived)
}
