package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestInstall installs the modules as they are here for programs of somebody else: without the replace directives,
// which go ignores in a dependency. The programs are compiled by make release-check alone, which takes minutes.
func TestInstall(t *testing.T) {
	t.Parallel()
	root, err := output(t.Context(), ".", nil, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		t.Skip("not in a clone")
	}
	r, err := newRehearsal(t.Context(), strings.TrimSpace(root), "v0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	for _, run := range []func(*rehearsal, context.Context) (string, error){
		(*rehearsal).required,
		(*rehearsal).changelog,
		(*rehearsal).pages,
	} {
		if _, err := run(r, t.Context()); err != nil {
			t.Error(err)
		}
	}
	for _, m := range r.modules {
		if _, packages, err := r.require(t.Context(), m); err != nil || packages == 0 {
			t.Errorf("%s: %d packages, %v", m.path, packages, err)
		}
		if !m.isCommand() {
			continue
		}
		if _, err := r.outside(t.Context(), r.work, nil, "go", "install", "-n", m.path+"@"+r.version); err != nil {
			t.Error(err)
		}
	}
}

// TestReleaseCheck: what is missing is said, and nothing is to be tagged.
func TestReleaseCheck(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "run", ".", "check", "-quick", "v9.9.9").CombinedOutput()
	if err == nil {
		t.Error("v9.9.9 could be tagged")
	}
	holds(t, string(out), "MISSING      our modules require each other at this version", "nats/go.mod requires",
		"ok           api.txt is what is exported", "ok           CHANGELOG.md", "v9.9.9 cannot be tagged")
	lacks(t, string(out), "makes these tags")
}

// TestChecksOfAShop goes through all checks that need no network, in a repository that could be tagged.
func TestChecksOfAShop(t *testing.T) {
	r := rehearse(t, aRepository(t), "v0.1.0")
	for name, c := range map[string]struct {
		run func(*rehearsal, context.Context) (string, error)
		saw string
	}{
		"newer":           {(*rehearsal).newer, "there is none"},
		"committed":       {(*rehearsal).committed, ""},
		"required":        {(*rehearsal).required, "3 modules"},
		"changelog":       {(*rehearsal).changelog, "1 entries"},
		"pages":           {(*rehearsal).pages, "3 pages"},
		"compatible":      {(*rehearsal).compatible, "there is no earlier tag to compare with"},
		"install":         {(*rehearsal).install, "2 packages of 3 modules"},
		"installCommands": {(*rehearsal).installCommands, "2 commands"},
		"commands":        {(*rehearsal).commands, "v0.1.0 sold"},
		"taggedCommands":  {(*rehearsal).taggedCommands, ""},
	} {
		if saw, err := c.run(r, t.Context()); err != nil || saw != c.saw {
			t.Errorf("%s: saw %q, want %q: %v", name, saw, c.saw, err)
		}
	}
}

type files map[string]string

// TestChecksFail: each check finds what it is for.
func TestChecksFail(t *testing.T) {
	for name, c := range map[string]struct {
		files files
		run   func(*rehearsal, context.Context) (string, error)
		said  string
	}{
		"a module requires another version": {
			files{"broker/go.mod": "module example.com/shop/broker\n\ngo 1.26.0\n\nrequire example.com/shop v0.0.9\n"},
			(*rehearsal).required, "broker/go.mod requires example.com/shop@v0.0.9",
		},
		"a module requires one that gets no tag": {
			files{"broker/go.mod": "module example.com/shop/broker\n\nrequire example.com/shop/internal/tool v0.1.0\n"},
			(*rehearsal).required, "internal/tool, which gets no tag",
		},
		"a module is only found by a replace directive": {
			files{"broker/go.mod": "module example.com/shop/broker\n\ngo 1.26.0\n\n" +
				"require (\n\texample.com/shop v0.1.0\n\texample.com/tool v0.1.0\n)\n\n" +
				"replace (\n\texample.com/shop => ../\n\texample.com/tool => ../internal/tool\n)\n",
				"broker/broker.go":      "package broker\n\nimport _ \"example.com/tool\"\n",
				"internal/tool/main.go": "package tool\n"},
			(*rehearsal).install, "example.com/tool",
		},
		"nothing is new": {
			files{"CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n### Added\n\n## v0.0.1\n\n- something\n"},
			(*rehearsal).changelog, "has no entries",
		},
		"a link leads to no file": {
			files{"CHANGELOG.md": "## Unreleased\n\n- [a page](docs/none.md)\n"},
			(*rehearsal).changelog, "docs/none.md",
		},
		"a link leads to no heading": {
			files{"CHANGELOG.md": "## Unreleased\n\n- [a page](docs/page.md#how-to-buy)\n"},
			(*rehearsal).changelog, "docs/page.md#how-to-buy",
		},
		"a page still says that nothing is released": {
			files{"docs/page.md": "# Page\n\nUntil the first release, wait.\n"},
			(*rehearsal).pages, "docs/page.md: Until the first release",
		},
		"the command of the README is of another module": {
			files{"README.md": "```\ngo get example.com/shop/brokers\n```\n\n```go\npackage main\n\nfunc main() {}\n```\n"},
			(*rehearsal).installCommands, "example.com/shop/brokers",
		},
		"the README says not how to install": {
			files{"README.md": "# Shop\n"},
			(*rehearsal).installCommands, "says not how to install",
		},
		"the command does not say its version": {
			files{"cmd/shopctl/main.go": "package main\n\nfunc main() { println(\"version 1\") }\n"},
			(*rehearsal).commands, "shopctl version says",
		},
		"something is not committed": {
			files{"new.go": "package shop\n"},
			(*rehearsal).committed, "new.go",
		},
	} {
		t.Run(name, func(t *testing.T) {
			repo := aRepository(t)
			for file, content := range c.files {
				write(t, repo+"/"+file, content)
			}
			saw, err := c.run(rehearse(t, repo, "v0.1.0"), t.Context())
			if err == nil || !strings.Contains(err.Error(), c.said) {
				t.Errorf("saw %q, %v", saw, err)
			}
		})
	}
}

func TestNewerThanTheLastTag(t *testing.T) {
	repo := aRepository(t)
	git(t, repo, "tag", "v0.1.0")
	git(t, repo, "tag", "v0.1.0-rc.1")
	for version, fine := range map[string]bool{"v0.0.9": false, "v0.1.0": false, "v0.1.1": true} {
		if _, err := (&rehearsal{root: repo, version: version}).newer(t.Context()); (err == nil) != fine {
			t.Errorf("%s: %v", version, err)
		}
	}
}

func TestMayBreak(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		last, version string
		want          bool
	}{
		{"v0.1.0", "v0.1.1", false}, {"v0.1.0", "v0.2.0", true}, {"v0.9.0", "v1.0.0", true},
		{"v1.0.0", "v1.0.1", false}, {"v1.0.0", "v1.1.0", false}, {"v1.4.0", "v2.0.0", true},
	} {
		if got := mayBreak(c.last, c.version); got != c.want {
			t.Errorf("%s after %s: %t", c.version, c.last, got)
		}
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"v0.1.0": true, "v1.2.3-rc.1": true,
		"0.1.0": false, "v1": false, "v1.2": false, "v1.2.3+meta": false, "": false, "-quick": false,
	} {
		if isVersion(version) != want {
			t.Errorf("%q: want %t", version, want)
		}
	}
}

// TestOnlyDemosShare keeps examples such that each can be copied out without its tests. examples/README.md has those in
// its table, and no others.
func TestOnlyDemosShare(t *testing.T) {
	all, err := examplesIn(filepath.Join("..", "..", "examples"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "examples", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var together []string
	for _, e := range all {
		alone := e.standsAlone("github.com/millrace-go/watermill-outbox")
		if strings.Contains(string(page), "\n| ["+e.name+"]("+e.name+") |") != alone {
			t.Errorf("examples/%s: can be copied: %t; examples/README.md says something else", e.name, alone)
		}
		if !alone {
			together = append(together, e.name)
		}
	}
	if !slices.Equal(together, []string{"kafka", "nats", "page"}) {
		t.Errorf("%v import packages of examples or internal", together)
	}
}
