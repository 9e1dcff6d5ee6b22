package mutants

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// internal is where the files of the table are.
const internal = ".."

// quick are those that every run of the tests builds, one of each part of the engine.
var quick = []string{"W3", "W4", "W9", "B1", "B9", "B12", "L9", "M2", "M5", "M12", "M14", "S11"}

// TestTable: each old text is in its file exactly once, or a mutant breaks something else than it says.
func TestTable(t *testing.T) {
	names := map[string]bool{}
	for _, m := range table() {
		text, err := os.ReadFile(filepath.Join(internal, m.File))
		if n := strings.Count(string(text), m.Old); err != nil || n != 1 || m.Old == m.New {
			t.Errorf("%s: its old text is in %s %d times: change the table with the code: %v", m.Name, m.File, n, err)
		}
		if names[m.Name] {
			t.Errorf("two mutants are called %s", m.Name)
		}
		names[m.Name] = true
	}
	for _, name := range quick {
		if !names[name] {
			t.Errorf("there is no mutant %s", name)
		}
	}
}

// found is what became of a mutant.
type found struct {
	seed    uint64
	problem string
	took    time.Duration
}

// TestMutants has the model find a dozen broken rules, and all of the table with OUTBOX_MUTANTS, as make mutants does.
// The same schedules find nothing in what is shipped.
func TestMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all has it")
	}
	list, results, dir := chosen(table()), map[string]found{}, t.TempDir()
	unbroken, err := Mutant{}.Build(internal, dir)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	places := make(chan struct{}, 2)
	t.Run("all", func(t *testing.T) {
		for _, m := range list {
			t.Run(m.Name, func(t *testing.T) {
				t.Parallel()
				places <- struct{}{}
				defer func() { <-places }()
				f := m.hunt(t, dir, unbroken)
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

// table is all of them.
func table() []Mutant { return slices.Concat(windowMutants, boardMutants, machineMutants) }

func chosen(all []Mutant) []Mutant {
	if os.Getenv("OUTBOX_MUTANTS") != "" {
		return all
	}
	return slices.DeleteFunc(all, func(m Mutant) bool { return !slices.Contains(quick, m.Name) })
}

// hunt looks for a mutant among the seeds that it must be found within. One that need not be found is built all the
// same.
func (m Mutant) hunt(t *testing.T, dir, unbroken string) (f found) {
	began := time.Now()
	binary, err := m.Build(internal, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(binary)
	if m.Strike != "" {
		return f
	}
	if m.Test != "" {
		if m.In != "" {
			if unbroken, err = (Mutant{In: m.In}).Build(internal, dir); err != nil {
				t.Fatal(err)
			}
		}
		if f.problem, f.took = m.Test+" fails", time.Since(began).Round(time.Second); !m.Fails(internal, binary) {
			f.problem = ""
			t.Errorf("%s: %s passes", m.Breaks, m.Test)
		}
		if m.Fails(internal, unbroken) {
			t.Errorf("%s fails with nothing broken", m.Test)
		}
		return f
	}
	f.seed, f.problem, err = m.Find(binary)
	f.took = time.Since(began).Round(time.Second)
	switch {
	case err != nil:
		t.Error(err)
	case f.problem == "":
		t.Errorf("%s: not found within %d seeds of %s: no check sees it: add one, or strike it with a reason", m.Breaks,
			Seeds, m.Trouble)
	default:
		t.Logf("%s: seed %d of %s: %s", m.Breaks, f.seed, m.Trouble, f.problem)
		_, problem, err := Run(unbroken, m.Trouble, f.seed, f.seed+1)
		if problem != "" || err != nil {
			t.Errorf("seed %d of %s fails with nothing broken: %s %v", f.seed, m.Trouble, problem, err)
		}
	}
	return f
}

// print writes what became of all of them.
func print(list []Mutant, results map[string]found) {
	struck, hits := 0, 0
	const line = "%-4s %-18s %-10s %5s %5v  %s\n"
	fmt.Printf(line, "", "broken in", "trouble", "seed", "took", "what is so then, and how it shows")
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
			fmt.Printf(line, m.Name, m.File, "-", "-", f.took, m.Breaks+": "+f.problem)
		default:
			hits++
			what := fmt.Sprintf("%s: %.70s", m.Breaks, f.problem)
			fmt.Printf(line, m.Name, m.File, m.Trouble, fmt.Sprint(f.seed), f.took, what)
		}
	}
	fmt.Printf("%d mutants: %d found, %d struck, %d not found\n", len(list), hits, struck, len(list)-hits-struck)
}
