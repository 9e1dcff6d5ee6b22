package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
)

// tag commits what a release changes in the documents and makes all tags of a version. It pushes nothing.
func tag(ctx context.Context, repo, version string, when time.Time) error {
	if dirty, err := output(ctx, repo, nil, "git", "status", "--porcelain"); err != nil || dirty != "" {
		return errors.Join(err, errors.New("not everything is committed:\n"+dirty))
	}
	modules, err := modulesAt(ctx, repo, "HEAD")
	if err != nil {
		return err
	}
	if err := writeRelease(ctx, repo, version, when); err != nil {
		return err
	}
	if err := commit(ctx, repo, version+": what it brings"); err != nil {
		return err
	}
	for _, m := range modules {
		if !m.isCommand() {
			if _, err := output(ctx, repo, nil, "git", "tag", "-a", "-m", m.tag(version), m.tag(version)); err != nil {
				return err
			}
		}
	}
	for _, m := range modules {
		if m.isCommand() {
			if err := tagCommand(ctx, repo, m, modules, version); err != nil {
				return err
			}
		}
	}
	return nil
}

// tagCommand tags a commit of its own that no branch needs: go install refuses a module with replace directives, which
// the branch needs. In their place come the sums of what was tagged before, so that a checkout of the tag builds.
func tagCommand(ctx context.Context, repo string, m module, all []module, version string) error {
	parent, err := os.MkdirTemp("", "release-tag-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(parent)
	tree := filepath.Join(parent, "tree")
	if err := checkOut(ctx, repo, tree, version); err != nil {
		return err
	}
	defer func() {
		_, _ = output(context.WithoutCancel(ctx), repo, nil, "git", "worktree", "remove", "--force", tree)
	}()
	if err := edit(filepath.Join(tree, m.dir, "go.mod"), withoutReplace); err != nil {
		return err
	}
	var added []string
	for _, required := range m.requires(all) {
		lines, err := sums(ctx, repo, required, version)
		if err != nil {
			return err
		}
		added = append(added, lines...)
	}
	if err := edit(filepath.Join(tree, m.dir, "go.sum"), func(content []byte) ([]byte, error) {
		return append(content, strings.Join(append(added, ""), "\n")...), nil
	}); err != nil {
		return err
	}
	if err := commit(ctx, tree, m.dir+": "+version); err != nil {
		return err
	}
	_, err = output(ctx, tree, nil, "git", "tag", "-a", "-m", m.tag(version), m.tag(version))
	return err
}

// checkOut puts a commit of the repository into a folder of its own.
func checkOut(ctx context.Context, repo, dir, commit string) error {
	_, err := output(ctx, repo, nil, "git", "worktree", "add", "--quiet", "--detach", dir, commit)
	return err
}

func withoutReplace(content []byte) ([]byte, error) {
	file, err := modfile.Parse("go.mod", content, nil)
	if err != nil {
		return nil, err
	}
	for _, r := range slices.Clone(file.Replace) {
		if err := file.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return nil, err
		}
	}
	file.Cleanup()
	return file.Format()
}

func edit(file string, change func([]byte) ([]byte, error)) error {
	before, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	changed, err := change(before)
	if err != nil {
		return err
	}
	return os.WriteFile(file, changed, 0o644)
}

// commit does nothing if nothing has changed.
func commit(ctx context.Context, repo, message string) error {
	if changed, err := output(ctx, repo, nil, "git", "status", "--porcelain"); err != nil || changed == "" {
		return err
	}
	if _, err := output(ctx, repo, nil, "git", "add", "-A"); err != nil {
		return err
	}
	_, err := output(ctx, repo, nil, "git", "commit", "--quiet", "-m", message)
	return err
}

// untilReleased is what pages say as long as there is no release.
var untilReleased = regexp.MustCompile(`(?s)<!--unreleased-->\n.*?<!--/unreleased-->\n+`)

// writeRelease turns what is unreleased in CHANGELOG.md into the version's section, and takes out of all pages what
// holds only until there is a release.
func writeRelease(ctx context.Context, repo, version string, when time.Time) error {
	listed, err := output(ctx, repo, nil, "git", "ls-files", "*.md")
	if err != nil {
		return err
	}
	for _, page := range strings.Fields(listed) {
		if err := edit(filepath.Join(repo, page), func(content []byte) ([]byte, error) {
			content = untilReleased.ReplaceAll(content, nil)
			if page == changelogFile {
				content = []byte(turned(string(content), version, when))
			}
			return content, nil
		}); err != nil {
			return err
		}
	}
	return nil
}
