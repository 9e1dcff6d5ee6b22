package main

import (
	"strings"
	"testing"
	"time"
)

var november = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func TestTag(t *testing.T) {
	t.Parallel()
	repo := aRepository(t)
	before := git(t, repo, "rev-parse", "HEAD")
	if err := tag(t.Context(), repo, "v0.1.0", november); err != nil {
		t.Fatal(err)
	}
	if got := git(t, repo, "tag"); got != "broker/v0.1.0\ncmd/shopctl/v0.1.0\nv0.1.0" {
		t.Errorf("tags: %s", got)
	}
	if got := git(t, repo, "rev-parse", "HEAD~1"); got != before {
		t.Errorf("the branch has more than one commit on top of what it had")
	}
	for _, same := range []string{"v0.1.0", "broker/v0.1.0"} {
		if git(t, repo, "rev-parse", same+"^{commit}") != git(t, repo, "rev-parse", "HEAD") {
			t.Errorf("%s is not on the branch's commit", same)
		}
	}
	holds(t, git(t, repo, "show", "v0.1.0:CHANGELOG.md"), "## Unreleased\n\n## v0.1.0 - 2026-11-23\n\n- Selling")
	lacks(t, git(t, repo, "show", "v0.1.0:README.md"), "Nothing is released", "unreleased")
	holds(t, git(t, repo, "show", "v0.1.0:README.md"), "go get example.com/shop\n```\n\n```go\n")

	// What the command's tag has over the others.
	holds(t, git(t, repo, "show", "v0.1.0:cmd/shopctl/go.mod"), "replace")
	holds(t, git(t, repo, "show", "cmd/shopctl/v0.1.0:cmd/shopctl/go.mod"), "example.com/shop/broker v0.1.0")
	lacks(t, git(t, repo, "show", "cmd/shopctl/v0.1.0:cmd/shopctl/go.mod"), "replace")
	holds(t, git(t, repo, "show", "cmd/shopctl/v0.1.0:cmd/shopctl/go.sum"),
		"example.com/shop v0.1.0 h1:", "example.com/shop v0.1.0/go.mod h1:", "example.com/shop/broker v0.1.0 h1:")
	changed := git(t, repo, "diff", "--name-only", "v0.1.0", "cmd/shopctl/v0.1.0")
	if changed != "cmd/shopctl/go.mod\ncmd/shopctl/go.sum" {
		t.Errorf("its commit changes %s", changed)
	}
	if got := git(t, repo, "worktree", "list"); strings.Count(got, "\n") != 0 {
		t.Errorf("a work tree stays: %s", got)
	}
	if got := git(t, repo, "branch", "--show-current"); got != "main" {
		t.Errorf("on branch %q", got)
	}
}

func TestTagWantsEverythingCommitted(t *testing.T) {
	t.Parallel()
	repo := aRepository(t)
	write(t, repo+"/new.go", "package shop\n")
	err := tag(t.Context(), repo, "v0.1.0", november)
	if err == nil || !strings.Contains(err.Error(), "new.go") {
		t.Errorf("got %v", err)
	}
	if got := git(t, repo, "tag"); got != "" {
		t.Errorf("tags: %s", got)
	}
}
