package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTag tags a repository like ours: a root module, a nested one, and a command that requires both.
func TestTag(t *testing.T) {
	t.Parallel()
	repo := t.TempDir()
	do := func(args ...string) string {
		t.Helper()
		printed, err := output(t.Context(), repo, nil, "git", args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(printed)
	}
	do("init", "--quiet", "--initial-branch", "main")
	do("config", "user.name", "tester")
	do("config", "user.email", "tester@localhost")
	const command = "module example.com/shop/cmd/shopctl\n\ngo 1.26.0\n\n" +
		"require (\n\texample.com/shop v0.1.0\n\texample.com/shop/broker v0.1.0\n)\n\n" +
		"replace (\n\texample.com/shop => ../..\n\texample.com/shop/broker => ../../broker\n)\n"
	for file, content := range map[string]string{
		"LICENSE":              "MIT\n",
		"go.mod":               "module example.com/shop\n\ngo 1.26.0\n",
		"shop.go":              "package shop\n",
		"internal/tool/go.mod": "module example.com/shop/internal/tool\n\ngo 1.26.0\n",
		"broker/go.mod": "module example.com/shop/broker\n\ngo 1.26.0\n\nrequire example.com/shop v0.1.0\n\n" +
			"replace example.com/shop => ../\n",
		"broker/broker.go":    "package broker\n",
		"cmd/shopctl/go.mod":  command,
		"cmd/shopctl/go.sum":  "",
		"cmd/shopctl/main.go": "package main\n\nfunc main() {}\n",
		"CHANGELOG.md":        "# Changelog\n\n## Unreleased\n\n- Selling.\n",
		"README.md":           "# Shop\n\n<!--unreleased-->\nNothing is released yet.\n<!--/unreleased-->\n\nIt sells.\n",
	} {
		if err := os.MkdirAll(filepath.Join(repo, filepath.Dir(file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(repo, file), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	do("add", "-A")
	do("commit", "--quiet", "-m", "a shop")

	tags, err := tag(t.Context(), repo, "v0.1.0", time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(tags, " "); got != "v0.1.0 broker/v0.1.0 cmd/shopctl/v0.1.0" {
		t.Errorf("tags: %s", got)
	}
	for _, tag := range tags {
		if do("rev-parse", tag+"^{commit}") != do("rev-parse", "HEAD~1") {
			t.Errorf("%s is not on the commit of the version", tag)
		}
	}
	for file, want := range map[string]string{
		"CHANGELOG.md":       "# Changelog\n\n## Unreleased\n\n## v0.1.0 - 2026-11-23\n\n- Selling.",
		"README.md":          "# Shop\n\nIt sells.",
		"cmd/shopctl/go.mod": strings.TrimSpace(command[:strings.Index(command, "replace")]),
	} {
		if got := do("show", "v0.1.0:"+file); got != want {
			t.Errorf("%s is\n%s", file, got)
		}
	}
	for _, sum := range []string{"shop v0.1.0 h1:", "shop v0.1.0/go.mod h1:", "shop/broker v0.1.0 h1:"} {
		if !strings.Contains(do("show", "v0.1.0:cmd/shopctl/go.sum"), "example.com/"+sum) {
			t.Errorf("go.sum has no %s", sum)
		}
	}
	if got := do("diff", "--name-only", "HEAD~2", "HEAD"); got != "CHANGELOG.md\nREADME.md" {
		t.Errorf("the branch has changed in %s", got)
	}
	if _, err := tag(t.Context(), repo, "v0.2.0", time.Now()); err == nil || !strings.Contains(err.Error(), "v0.1.0") {
		t.Errorf("modules that require another version: %v", err)
	}
}
