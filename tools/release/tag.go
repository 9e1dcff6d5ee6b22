package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
)

// tag commits the version, tags it for each module, and commits the replace directives again.
func tag(ctx context.Context, repo, version string, now time.Time) (tags []string, err error) {
	if dirty, err := output(ctx, repo, nil, "git", "status", "--porcelain"); err != nil || dirty != "" {
		return nil, errors.Join(err, errors.New("not everything is committed:\n"+dirty))
	}
	modules, err := modulesAt(ctx, repo, "HEAD")
	if err != nil {
		return nil, err
	}
	if err := writeRelease(ctx, repo, version, now); err != nil {
		return nil, err
	}
	before := map[string][]byte{} // what the next commit restores
	for _, m := range modules {
		for _, r := range m.requires(modules) {
			if r.version != version {
				return nil, fmt.Errorf("%s requires %s %s", m.dir, r.path, r.version)
			}
		}
		if !m.isCommand() {
			continue
		}
		for _, name := range []string{"go.mod", "go.sum"} {
			if before[m.dir+"/"+name], err = os.ReadFile(filepath.Join(repo, m.dir, name)); err != nil {
				return nil, err
			}
		}
		if err := edit(filepath.Join(repo, m.dir, "go.mod"), withoutReplace); err != nil {
			return nil, err
		}
	}
	if err := git(ctx, repo, "commit", "--quiet", "-a", "-m", version); err != nil {
		return nil, err
	}
	for _, m := range modules {
		if m.isCommand() {
			if err := addSums(ctx, repo, m, modules, version); err != nil {
				return nil, err
			}
		}
	}
	if err := git(ctx, repo, "commit", "--quiet", "-a", "--amend", "--no-edit"); err != nil {
		return nil, err
	}
	for _, m := range modules {
		tags = append(tags, m.tag(version))
		if err := git(ctx, repo, "tag", "-a", "-m", m.tag(version), m.tag(version)); err != nil {
			return nil, err
		}
	}
	for file, content := range before {
		if err := os.WriteFile(filepath.Join(repo, file), content, 0o644); err != nil {
			return nil, err
		}
	}
	return tags, git(ctx, repo, "commit", "--quiet", "-a", "-m", "go.mod: replace directives again, after "+version)
}

// addSums adds what go.sum needs without replace directives. The commit already has all that the sums cover: a module's
// archive has no files of the modules in its folders.
func addSums(ctx context.Context, repo string, m module, all []module, version string) error {
	var added []string
	for _, r := range m.requires(all) {
		lines, err := sums(ctx, repo, r.module, version)
		if err != nil {
			return err
		}
		added = append(added, lines...)
	}
	return edit(filepath.Join(repo, m.dir, "go.sum"), func(content []byte) ([]byte, error) {
		return append(content, strings.Join(append(added, ""), "\n")...), nil
	})
}

func git(ctx context.Context, repo string, args ...string) error {
	_, err := output(ctx, repo, nil, "git", args...)
	return err
}

func withoutReplace(content []byte) ([]byte, error) {
	file, err := modfile.Parse("go.mod", content, nil)
	if err != nil {
		return nil, err
	}
	for len(file.Replace) > 0 {
		old := file.Replace[0].Old
		if err := file.DropReplace(old.Path, old.Version); err != nil {
			return nil, err
		}
		file.Cleanup()
	}
	return file.Format()
}

func edit(file string, change func([]byte) ([]byte, error)) error {
	before, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	after, err := change(before)
	if err != nil {
		return err
	}
	return os.WriteFile(file, after, 0o644)
}

// unreleased matches text that pages have until the first release.
var unreleased = regexp.MustCompile(`(?s)<!--unreleased-->\n.*?<!--/unreleased-->\n+`)

// writeRelease dates the unreleased section of CHANGELOG.md, and removes text that holds only until then from all
// pages.
func writeRelease(ctx context.Context, repo, version string, now time.Time) error {
	listed, err := output(ctx, repo, nil, "git", "ls-files", "*.md")
	if err != nil {
		return err
	}
	const heading = "## Unreleased\n"
	for page := range strings.FieldsSeq(listed) {
		if err := edit(filepath.Join(repo, page), func(content []byte) ([]byte, error) {
			text := string(unreleased.ReplaceAll(content, nil))
			if page == "CHANGELOG.md" {
				if !strings.Contains(text, heading) {
					return nil, errors.New("CHANGELOG.md has no section Unreleased")
				}
				text = strings.Replace(text, heading, heading+"\n## "+version+" - "+now.UTC().Format(time.DateOnly)+"\n", 1)
			}
			return []byte(text), nil
		}); err != nil {
			return err
		}
	}
	return nil
}
