package mutants

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Mutant is a rule of shipped code that is broken.
type Mutant struct {
	Name    string
	Breaks  string // what is so without the rule
	File    string // in forwarder/internal
	Old     string // is in the file exactly once
	New     string
	Trouble string // the schedules among which it is looked for
	First   uint64 // the seed at which it was found when this was written: when the code has changed it may be another
	Test    string // that finds it, as schedules hardly do; "" = schedules must
	In      string // the package of Test; "" = board
	Strike  string // why it breaks no promise, or none that a schedule can see; "" = it must be found
}

// Seeds are those within which each mutant must be found.
const Seeds = 2000

// in is the package whose tests are to find it: the model is in board.
func (m Mutant) in() string { return cmp.Or(m.In, "board") }

// Build makes a test binary of the model with the mutant, or of the tests In; with neither a name nor a text it makes
// one with nothing broken.
func (m Mutant) Build(internal, dir string) (binary string, err error) {
	binary = filepath.Join(dir, m.Name+"."+m.in()+".test")
	args := []string{"-n", "19", "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary}
	if m.Name != "" {
		overlay, err := m.overlay(internal, dir)
		if err != nil {
			return "", err
		}
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.Command("nice", append(args, "./"+m.in())...)
	cmd.Dir = internal
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", m.Name, err, out)
	}
	return binary, nil
}

// overlay writes the changed file, and the list that has the compiler take it.
func (m Mutant) overlay(internal, dir string) (list string, err error) {
	shipped, err := filepath.Abs(filepath.Join(internal, m.File))
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(shipped)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.Old); n != 1 {
		return "", fmt.Errorf("%s: the old text is in %s %d times: change the table with the code", m.Name, m.File, n)
	}
	changed := filepath.Join(dir, m.Name+".go")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), m.Old, m.New, 1)), 0o600); err != nil {
		return "", err
	}
	data, err := json.Marshal(map[string]any{"Replace": map[string]string{shipped: changed}})
	if err != nil {
		return "", err
	}
	list = filepath.Join(dir, m.Name+".json")
	return list, os.WriteFile(list, data, 0o600)
}

var violation = regexp.MustCompile(`seed (\d+): (.*)`)

// Run has a binary make schedules, and returns the seed at which something was wrong; problem "" = nothing was.
func Run(binary, trouble string, from, to uint64) (seed uint64, problem string, err error) {
	cmd := exec.Command("nice", "-n", "19", binary, "-test.run", "^TestSeed$", "-test.timeout", "30m")
	cmd.Env = append(os.Environ(), fmt.Sprintf("OUTBOX_SEED=%s/%d-%d", trouble, from, to))
	cmd.Dir = filepath.Dir(binary)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return 0, "", nil
	}
	found := violation.FindSubmatch(out)
	if found == nil {
		return 0, "", fmt.Errorf("run %s: %w: %s", filepath.Base(binary), err, out)
	}
	_, err = fmt.Sscan(string(found[1]), &seed)
	return seed, string(found[2]), err
}

// Fails says whether the mutant's test fails with a binary.
func (m Mutant) Fails(internal, binary string) bool {
	name := "^" + strings.ReplaceAll(m.Test, "/", "$/^") + "$"
	cmd := exec.Command("nice", "-n", "19", binary, "-test.run", name, "-test.timeout", "30m")
	cmd.Dir = filepath.Join(internal, m.in()) // where testdata is
	return cmd.Run() != nil
}

// Find returns the first seed at which a mutant is found, looking at the one in the table before all others.
func (m Mutant) Find(binary string) (seed uint64, problem string, err error) {
	if seed, problem, err = Run(binary, m.Trouble, m.First, m.First+1); problem != "" || err != nil {
		return seed, problem, err
	}
	return Run(binary, m.Trouble, 0, Seeds)
}
