package mutants

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// root is the folder to which the paths of the table are relative.
const root = "../../.."

// quick lists the mutants that every run of test-all builds, one of each part.
var quick = []string{"W3", "W4", "W9", "B1", "B9", "B12", "L9", "M2", "M5", "M14", "D2"}

// table returns all mutants.
func table() []Mutant {
	return slices.Concat(engine(slices.Concat(cursorMutants, dispatchMutants, coordinatorMutants)), others())
}

// others returns mutants that only tests find.
func others() []Mutant {
	return slices.Concat(rootMutants, inboxMutants, idempotencyMutants, adminMutants, queueMutants, brokerMutants)
}

// TestTable: each old text occurs in its file exactly once, otherwise a mutant would break something else; and each
// test exists.
func TestTable(t *testing.T) {
	names, tests := map[string]bool{}, map[string][]string{}
	for _, m := range table() {
		text, err := os.ReadFile(filepath.Join(root, m.File))
		if n := strings.Count(string(text), m.Old); err != nil || n != 1 || m.Old == m.New {
			t.Errorf("%s: its old text is in %s %d times: change the table with the code: %v", m.Name, m.File, n, err)
		}
		if names[m.Name] {
			t.Errorf("two mutants are named %s", m.Name)
		}
		names[m.Name] = true
		if m.Test != "" {
			tests[m.In] = append(tests[m.In], m.top())
		}
	}
	for in, list := range tests {
		if _, err := needed(filepath.Join(root, in), list); err != nil {
			t.Error(err)
		}
	}
	for _, name := range quick {
		if !names[name] {
			t.Errorf("mutant %s does not exist", name)
		}
	}
}

// found is the result of a mutant.
type found struct {
	seed    uint64
	problem string
	took    time.Duration
}

// TestMutants makes the model or a test find a dozen broken rules. With OUTBOX_MUTANTS, which make mutants sets, it
// tries all mutants whose names begin with one of its words. The same schedules and tests pass with unbroken code.
func TestMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("runs in make test-all")
	}
	list, results, dir := chosen(table()), map[string]found{}, t.TempDir()
	hunt := &hunt{dir: dir, unbroken: map[string]string{}, passes: map[string]bool{}}
	if err := hunt.prepare(list); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	slots := make(chan struct{}, 2)
	t.Run("all", func(t *testing.T) {
		for _, m := range list {
			t.Run(m.Name, func(t *testing.T) {
				t.Parallel()
				slots <- struct{}{}
				defer func() { <-slots }()
				f := hunt.find(t, m)
				mu.Lock()
				defer mu.Unlock()
				results[m.Name] = f
			})
		}
	})
	if os.Getenv("OUTBOX_MUTANTS") != "" {
		print(list, results)
	}
}

func chosen(all []Mutant) []Mutant {
	words := strings.Fields(os.Getenv("OUTBOX_MUTANTS"))
	return slices.DeleteFunc(all, func(m Mutant) bool {
		if len(words) == 0 {
			return !slices.Contains(quick, m.Name)
		}
		return !slices.ContainsFunc(words, func(w string) bool { return w == "all" || strings.HasPrefix(m.Name, w) })
	})
}

// top returns the test function of Test, which may be a subtest.
func (m Mutant) top() string {
	top, _, _ := strings.Cut(m.Test, "/")
	return top
}

// hunt searches for mutants.
type hunt struct {
	dir      string
	unbroken map[string]string // unbroken test binaries, by package

	mu     sync.Mutex
	passes map[string]bool // whether a test passes with unbroken code
}

// prepare builds each package unbroken.
func (h *hunt) prepare(list []Mutant) (err error) {
	tests := map[string][]string{}
	for _, m := range list {
		if m.Strike != "" {
			continue // only built, not searched for
		}
		if m.pruned() {
			tests[m.In] = append(tests[m.In], m.top())
		} else {
			tests[m.In] = nil
		}
	}
	for in, names := range tests {
		if h.unbroken[in], err = (Mutant{In: in}).Build(root, h.dir, names...); err != nil {
			return err
		}
	}
	return nil
}

// pruned reports whether only the mutant's test is compiled: the packages of models are small.
func (m Mutant) pruned() bool { return m.In == "integration_test" && m.Test != "" }

// find searches for a mutant with its test, or otherwise within Seeds seeds. One that need not be found is still built.
func (h *hunt) find(t *testing.T, m Mutant) (f found) {
	began := time.Now()
	var tests []string
	if m.pruned() {
		tests = []string{m.top()}
	}
	binary, err := m.Build(root, h.dir, tests...)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(binary)
	if m.Strike != "" {
		return f
	}
	if m.Test != "" {
		failed, output, err := m.Fails(root, binary)
		f.took = time.Since(began).Round(time.Second)
		switch {
		case err != nil:
			t.Error(err)
		case !failed:
			t.Errorf("%s: %s passes", m.Breaks, m.Test)
		case !h.passesUnbroken(t, m):
		default:
			f.problem = m.Test + " fails"
			t.Logf("%s: %s", m.Breaks, complaint(output))
		}
		return f
	}
	f.seed, f.problem, err = m.Find(binary)
	f.took = time.Since(began).Round(time.Second)
	switch {
	case err != nil:
		t.Error(err)
	case f.problem == "":
		t.Errorf("%s: not found within %d seeds of %s: no check notices it: add one, or strike it with a reason", m.Breaks,
			Seeds, m.Trouble)
	default:
		t.Logf("%s: seed %d of %s: %s", m.Breaks, f.seed, m.Trouble, f.problem)
		_, problem, err := Run(h.unbroken[m.In], m.Trouble, f.seed, f.seed+1)
		if problem != "" || err != nil {
			t.Errorf("seed %d of %s fails with unbroken code: %s %v", f.seed, m.Trouble, problem, err)
		}
	}
	return f
}

func (h *hunt) passesUnbroken(t *testing.T, m Mutant) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	name := m.In + "." + m.Test
	passes, known := h.passes[name]
	if !known {
		failed, output, err := m.Fails(root, h.unbroken[m.In])
		if passes = !failed && err == nil; !passes {
			t.Errorf("%s fails with unbroken code: %v: %s", m.Test, err, output)
		}
		h.passes[name] = passes
	}
	return passes
}

var complaints = regexp.MustCompile(`(?m)^\s+(\w+_test\.go:\d+: *\S.*|Error: .*|Error:.*)$|^panic: .*$`)

// complaint returns the first failure message in a test's output.
func complaint(output string) string {
	lines := complaints.FindAllString(output, 3)
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	return strings.Join(lines, " ")
}

// print prints the results of all mutants.
func print(list []Mutant, results map[string]found) {
	struck, hits := 0, 0
	const line = "%-4s %-34s %-10s %5s %5v  %s\n"
	fmt.Printf(line, "", "broken in", "trouble", "seed", "took", "what is true without the rule, and which test finds it")
	for _, m := range list {
		f := results[m.Name]
		switch {
		case m.Strike != "":
			struck++
			fmt.Printf(line, m.Name, m.File, m.Trouble, "-", "-", m.Breaks+": struck: "+m.Strike)
		case f.problem == "":
			fmt.Printf(line, m.Name, m.File, m.Trouble, "-", f.took, "NOT FOUND: "+m.Breaks)
		case m.Test != "":
			hits++
			if m.Second {
				f.problem += " (second tier)"
			}
			fmt.Printf(line, m.Name, m.File, "-", "-", f.took, m.Breaks+": "+f.problem)
		default:
			hits++
			what := fmt.Sprintf("%s: %.70s", m.Breaks, f.problem)
			fmt.Printf(line, m.Name, m.File, m.Trouble, fmt.Sprint(f.seed), f.took, what)
		}
	}
	fmt.Printf("%d mutants: %d found, %d struck, %d not found\n", len(list), hits, struck, len(list)-hits-struck)
}
