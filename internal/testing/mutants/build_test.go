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

// Mutant is one broken rule of shipped code.
type Mutant struct {
	Name    string
	Breaks  string // statement that is true without the rule
	File    string // from the root, or for the engine from forwarder/internal
	Old     string // occurs in the file exactly once
	New     string
	Trouble string // the schedules that must find it if Test is empty
	First   uint64 // the seed that found it when this was written; after code changes it may be another one
	Test    string // the test that fails with it; "" = schedules must find it
	In      string // the package of Test, from the same folder as File; "" = dispatch, for the engine
	Second  bool   // Test belongs to the second tier, which -short skips
	Strike  string // why it breaks no promise, or none visible to a schedule; "" = it must be found
}

// Seeds is the number of seeds within which each mutant of the engine must be found.
const Seeds = 2000

// engine completes the paths of the forwarder's mutants.
func engine(list []Mutant) []Mutant {
	const in = "forwarder/internal"
	for i, m := range list {
		list[i].File, list[i].In = in+"/"+m.File, in+"/"+cmp.Or(m.In, "dispatch")
	}
	return list
}

// Build builds the test binary of package In with the mutant, or without any if it has no name. Of a large package it
// compiles only code that tests need, if any are given.
func (m Mutant) Build(root, dir string, tests ...string) (binary string, err error) {
	binary = filepath.Join(dir, cmp.Or(m.Name, "unbroken")+"."+strings.ReplaceAll(m.In, "/", "_")+".test")
	replaced := map[string]string{}
	if m.Name != "" {
		if err := m.replace(replaced, root, dir); err != nil {
			return "", err
		}
	}
	pkg := filepath.Join(root, m.In)
	if len(tests) > 0 {
		if err := prune(replaced, pkg, dir, tests); err != nil {
			return "", err
		}
	}
	data, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	overlay := binary + ".json"
	if err := os.WriteFile(overlay, data, 0o600); err != nil {
		return "", err
	}
	cmd := exec.Command("nice", "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary,
		"-overlay", overlay, ".")
	cmd.Dir = pkg
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", m.Name, err, out)
	}
	return binary, nil
}

// replace writes the changed file.
func (m Mutant) replace(replaced map[string]string, root, dir string) error {
	shipped, err := filepath.Abs(filepath.Join(root, m.File))
	if err != nil {
		return err
	}
	text, err := os.ReadFile(shipped)
	if err != nil {
		return err
	}
	if n := strings.Count(string(text), m.Old); n != 1 {
		return fmt.Errorf("%s: the old text is in %s %d times: change the table with the code", m.Name, m.File, n)
	}
	changed := filepath.Join(dir, m.Name+".go")
	replaced[shipped] = changed
	return os.WriteFile(changed, []byte(strings.Replace(string(text), m.Old, m.New, 1)), 0o600)
}

// prune reduces the test files of a package to the code that the tests need.
func prune(replaced map[string]string, pkg, dir string, tests []string) error {
	kept, err := needed(pkg, tests)
	if err != nil {
		return err
	}
	out, err := os.MkdirTemp(dir, "pruned")
	if err != nil {
		return err
	}
	for file, text := range kept {
		shipped, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		if len(text) == 0 {
			replaced[shipped] = "" // as if deleted
			continue
		}
		replaced[shipped] = filepath.Join(out, filepath.Base(file))
		if err := os.WriteFile(replaced[shipped], text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

var violation = regexp.MustCompile(`seed (\d+): (.*)`)

// Run makes a binary run schedules, and returns the seed of the first problem; problem "" = none.
func Run(binary, trouble string, from, to uint64) (seed uint64, problem string, err error) {
	cmd := exec.Command("nice", binary, "-test.run", "^TestSeed$", "-test.timeout", "30m")
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

// Fails runs the mutant's test in its tier, and reports whether it fails, with its output. If the test did not run, it
// returns an error.
func (m Mutant) Fails(root, binary string) (failed bool, output string, err error) {
	name := "^" + strings.ReplaceAll(m.Test, "/", "$/^") + "$"
	args := []string{binary, "-test.run", name, "-test.v", "-test.timeout", "3m"}
	if !m.Second {
		args = append(args, "-test.short")
	}
	cmd := exec.Command("nice", args...)
	cmd.Dir = filepath.Join(root, m.In) // the folder with testdata
	out, err := cmd.CombinedOutput()
	switch output = string(out); {
	case strings.Contains(output, "--- FAIL: "+m.Test+" ") || strings.Contains(output, "\npanic: "):
		return true, output, nil
	case err != nil:
		return false, output, fmt.Errorf("run %s: %w: %s", m.Test, err, output)
	case !strings.Contains(output, "--- PASS: "+m.Test+" "):
		return false, output, fmt.Errorf("%s did not run: is it in the second tier, or its server missing?", m.Test)
	}
	return false, output, nil
}

// Find returns the first seed that finds a mutant. It tries the one in the table first.
func (m Mutant) Find(binary string) (seed uint64, problem string, err error) {
	if seed, problem, err = Run(binary, m.Trouble, m.First, m.First+1); problem != "" || err != nil {
		return seed, problem, err
	}
	return Run(binary, m.Trouble, 0, Seeds)
}
