package main

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// module is a module of the repository that gets a tag.
type module struct {
	dir  string // from the root, with slashes; "." is the root's
	path string
	file *modfile.File
}

// untagged matches folders whose modules nobody requires.
var untagged = regexp.MustCompile(`^(bench|examples|integration_test|internal|tools)/`)

// modulesAt reads the modules of a commit that get a tag, the root first.
func modulesAt(ctx context.Context, repo, commit string) (all []module, err error) {
	listed, err := output(ctx, repo, nil, "git", "ls-tree", "-r", "--name-only", commit)
	if err != nil {
		return nil, err
	}
	for _, file := range strings.Fields(listed) {
		if path.Base(file) != "go.mod" || untagged.MatchString(file) {
			continue
		}
		content, err := output(ctx, repo, nil, "git", "show", commit+":"+file)
		if err != nil {
			return nil, err
		}
		parsed, err := modfile.Parse(file, []byte(content), nil)
		if err != nil {
			return nil, err
		}
		all = append(all, module{path.Dir(file), parsed.Module.Mod.Path, parsed})
	}
	slices.SortFunc(all, func(a, b module) int { return strings.Compare(a.path, b.path) })
	if len(all) == 0 || all[0].dir != "." {
		return nil, fmt.Errorf("no module at the root of %s", repo)
	}
	return all, nil
}

func (m module) tag(version string) string {
	if m.dir == "." {
		return version
	}
	return m.dir + "/" + version
}

// isCommand reports whether users run go install PACKAGE@VERSION, which refuses a go.mod with replace directives.
func (m module) isCommand() bool { return strings.HasPrefix(m.dir, "cmd/") }

// requirement is a module of the repository that another one requires.
type requirement struct {
	module
	version string
}

func (m module) requires(all []module) (some []requirement) {
	for _, r := range m.file.Require {
		for _, other := range all {
			if r.Mod.Path == other.path {
				some = append(some, requirement{other, r.Mod.Version})
			}
		}
	}
	return some
}

func isVersion(version string) bool {
	return semver.IsValid(version) && semver.Canonical(version) == version
}

// lastTag is the newest version of the root, or empty.
func lastTag(ctx context.Context, repo string) (last string, err error) {
	listed, err := output(ctx, repo, nil, "git", "tag", "--list", "v*")
	for tag := range strings.FieldsSeq(listed) {
		if isVersion(tag) && semver.Compare(tag, last) > 0 {
			last = tag
		}
	}
	return last, err
}
