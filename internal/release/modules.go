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

// module is one of the repository that gets a tag.
type module struct {
	dir  string // from the root, with slashes; "." is the root's
	path string
	file *modfile.File
}

// user is the name of a program that imports the module.
func (m module) user() string {
	return "uses-" + strings.ReplaceAll(path.Join("outbox", m.dir), "/", "-")
}

// unreleased are folders whose modules are not required by others.
var unreleased = regexp.MustCompile(`^(bench|examples|integration_test|internal)/`)

// modulesAt reads the modules of a commit that get a tag, the root first.
func modulesAt(ctx context.Context, repo, commit string) (all []module, err error) {
	listed, err := output(ctx, repo, nil, "git", "ls-tree", "-r", "--name-only", commit)
	if err != nil {
		return nil, err
	}
	for _, file := range strings.Fields(listed) {
		if path.Base(file) != "go.mod" || unreleased.MatchString(file) {
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

// isCommand: what go install PACKAGE@VERSION is for; go refuses it a go.mod that has a replace directive.
func (m module) isCommand() bool { return strings.HasPrefix(m.dir, "cmd/") }

// requires are the modules of the repository that m requires.
func (m module) requires(all []module) (some []module) {
	for _, other := range all {
		if slices.ContainsFunc(m.file.Require, func(r *modfile.Require) bool { return r.Mod.Path == other.path }) {
			some = append(some, other)
		}
	}
	return some
}

func isVersion(version string) bool {
	return semver.IsValid(version) && semver.Canonical(version) == version
}

// lastTag is the newest version that the root was tagged with, or none.
func lastTag(ctx context.Context, repo, before string) (string, error) {
	listed, err := output(ctx, repo, nil, "git", "tag", "--list", "v*")
	if err != nil {
		return "", err
	}
	last := ""
	for _, tag := range strings.Fields(listed) {
		if isVersion(tag) && tag != before && semver.Compare(tag, last) > 0 {
			last = tag
		}
	}
	return last, nil
}

// tagsOf are the tags of a version, the root's first.
func tagsOf(ctx context.Context, repo, version string) (tags []string, err error) {
	modules, err := modulesAt(ctx, repo, "HEAD")
	for _, m := range modules {
		tags = append(tags, m.tag(version))
	}
	return tags, err
}
