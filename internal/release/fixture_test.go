package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// aRepository makes one with a root module, one below it, and a command that requires both, as ours does. It needs no
// network.
func aRepository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	git(t, dir, "init", "--quiet", "--initial-branch", "main")
	git(t, dir, "config", "user.name", "tester")
	git(t, dir, "config", "user.email", "tester@localhost")
	for file, content := range map[string]string{
		"LICENSE":               "MIT\n",
		"go.mod":                "module example.com/shop\n\ngo 1.26.0\n",
		"shop.go":               "package shop\n\nfunc Sell() string { return \"sold\" }\n",
		"internal/tool/go.mod":  "module example.com/shop/internal/tool\n\ngo 1.26.0\n",
		"internal/tool/main.go": "package main\n\nfunc main() {}\n",
		"broker/go.mod": "module example.com/shop/broker\n\ngo 1.26.0\n\nrequire example.com/shop v0.1.0\n\n" +
			"replace example.com/shop => ../\n",
		"broker/broker.go": "package broker\n\nimport \"example.com/shop\"\n\nfunc Send() string { return shop.Sell() }\n",
		"cmd/shopctl/go.mod": "module example.com/shop/cmd/shopctl\n\ngo 1.26.0\n\n" +
			"require (\n\texample.com/shop v0.1.0\n\texample.com/shop/broker v0.1.0\n)\n\n" +
			"replace (\n\texample.com/shop => ../..\n\texample.com/shop/broker => ../../broker\n)\n",
		"cmd/shopctl/main.go": "package main\n\n" +
			"import (\n\t\"fmt\"\n\t\"runtime/debug\"\n\n\t\"example.com/shop/broker\"\n)\n\n" +
			"func main() {\n\tinfo, _ := debug.ReadBuildInfo()\n\tfmt.Println(info.Main.Version, broker.Send())\n}\n",
		"CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n- Selling: [page](docs/page.md#how-to-sell).\n",
		"README.md": "# Shop\n\n```\ngo get example.com/shop\n```\n\n" +
			"<!--unreleased-->\nNothing is released yet.\n<!--/unreleased-->\n\n" +
			"```go\npackage main\n\nimport \"example.com/shop\"\n\nfunc main() { shop.Sell() }\n```\n",
		"docs/page.md": "# Page\n\n## How to sell\n\n```\ngo install example.com/shop/cmd/shopctl@latest\n```\n",
	} {
		write(t, filepath.Join(dir, file), content)
	}
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "--quiet", "-m", "a shop")
	return dir
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	said, err := output(t.Context(), dir, nil, "git", args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(said)
}

// rehearse makes a rehearsal that asks no proxy on the network.
func rehearse(t *testing.T, root, version string) *rehearsal {
	t.Helper()
	t.Setenv("GOPROXY", "off")
	r, err := newRehearsal(t.Context(), root, version)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

func holds(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in:\n%s", part, text)
		}
	}
}

func lacks(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if strings.Contains(text, part) {
			t.Errorf("%q is in:\n%s", part, text)
		}
	}
}
