package dispatch_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestSimulate runs schedules with each kind of trouble in turn for the time in OUTBOX_SIMULATE, as make simulate does.
// It starts with the seed given there ("10m 4711"), or else with one from the clock. It prints a table of the results
// and continues after a violation: TestSeed with OUTBOX_SEED repeats such a schedule, made as short as possible.
func TestSimulate(t *testing.T) {
	args := strings.Fields(os.Getenv("OUTBOX_SIMULATE"))
	if len(args) == 0 {
		t.Skip("OUTBOX_SIMULATE is not set")
	}
	lasts, err := time.ParseDuration(args[0])
	first := uint64(time.Now().Unix())
	if len(args) > 1 && err == nil {
		first, err = strconv.ParseUint(args[1], 10, 64)
	}
	if err != nil || len(args) > 2 {
		t.Fatalf("OUTBOX_SIMULATE is %q: want a duration and an optional seed, such as 10m 4711: %v", args, err)
	}
	s := &simulation{done: map[trouble]*simulated{}, next: first, first: first}
	for _, of := range troubles {
		s.done[of] = &simulated{}
	}
	began := time.Now()
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for time.Since(began) < lasts {
				for n, seed := 0, s.seed(); n < len(troubles); n++ {
					s.make(troubles[n], seed)
				}
			}
		})
	}
	workers.Wait()
	s.print(time.Since(began))
	for _, v := range s.violations {
		t.Error(v)
	}
}

type simulation struct {
	mu          sync.Mutex
	first, next uint64
	done        map[trouble]*simulated
	violations  []string
}

// simulated is the result for one kind of trouble.
type simulated struct {
	schedules, acts, violations int
	took                        time.Duration // CPU time of one core
}

func (s *simulation) seed() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return s.next - 1
}

func (s *simulation) make(of trouble, seed uint64) {
	began := time.Now()
	problem, m := schedule{seed: seed, steps: allSteps(), variant: variant{trouble: of}}.run(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.done[of]
	d.schedules++
	d.acts += m.acts
	d.took += time.Since(began)
	if problem != "" {
		d.violations++
		s.violations = append(s.violations, fmt.Sprintf("OUTBOX_SEED=%s/%d: %s", of, seed, problem))
	}
}

func (s *simulation) print(took time.Duration) {
	fmt.Printf("seeds %d to %d, for %v\n%-10s %9s %10s %10s %10s\n", s.first, s.next-1, took.Round(time.Second), "trouble",
		"schedules", "acts", "per second", "violations")
	for _, of := range troubles {
		d := s.done[of]
		fmt.Printf("%-10s %9d %10d %10.1f %10d\n", of, d.schedules, d.acts, float64(d.schedules)/d.took.Seconds(),
			d.violations)
	}
}
