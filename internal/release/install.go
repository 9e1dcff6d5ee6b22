package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// asUser: what is required may be written into go.mod, as go get and go mod tidy would.
var asUser = []string{"GOFLAGS=-modcacherw -trimpath -mod=mod"}

// consumer makes a module of somebody else's, with the files given.
func (r *rehearsal) consumer(ctx context.Context, name string, files map[string]string) (dir string, err error) {
	if dir, err = r.folder("outside", name); err != nil {
		return "", err
	}
	for file, content := range files {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644); err != nil {
			return "", err
		}
	}
	_, err = r.outside(ctx, dir, nil, "go", "mod", "init", "example.com/"+name)
	return dir, err
}

// install has one program for each module, which imports all packages of that module, and nothing else.
func (r *rehearsal) install(ctx context.Context) (string, error) {
	packages := 0
	for _, m := range r.modules {
		dir, count, err := r.require(ctx, m)
		if err != nil {
			return "", fmt.Errorf("%s: %w", m.path, err)
		}
		if _, err := r.outside(ctx, dir, asUser, "go", "build", "-o", os.DevNull, "."); err != nil {
			return "", fmt.Errorf("%s: %w", m.path, err)
		}
		packages += count
	}
	return fmt.Sprintf("%d packages of %d modules", packages, len(r.modules)), nil
}

// require has a module of somebody else's get m at the version and import its packages.
func (r *rehearsal) require(ctx context.Context, m module) (dir string, packages int, err error) {
	const form = "{{if not (or .Error (eq .Name \"main\"))}}{{.ImportPath}}{{end}}"
	listed, err := output(ctx, filepath.Join(r.clone, m.dir), nil, "go", "list", "-f", form, "./...")
	if err != nil {
		return "", 0, err
	}
	program := "package main\n\n"
	for _, p := range strings.Fields(listed) {
		if !strings.Contains(p+"/", "/internal/") {
			program += fmt.Sprintf("import _ %q\n", p)
			packages++
		}
	}
	files := map[string]string{"main.go": program + "\nfunc main() {}\n"}
	if dir, err = r.consumer(ctx, m.user(), files); err != nil {
		return "", 0, err
	}
	if _, err := r.outside(ctx, dir, asUser, "go", "get", m.path+"@"+r.version); err != nil {
		return "", 0, err
	}
	_, err = r.outside(ctx, dir, asUser, "go", "list", "-deps", "-f", "{{with .Error}}{{.}}{{end}}", ".")
	return dir, packages, err
}

var (
	aBlock    = regexp.MustCompile("(?s)```(\\w*)\n(.*?)```")
	aProgram  = regexp.MustCompile("(?s)```go\n(package main\n.*?)```")
	anInstall = regexp.MustCompile(`(?m)^go (get|install) (\S+)`)
)

// installCommands runs the lines go get and go install of the README and of all pages as they stand, without a version:
// the program of the README needs no more than those of the README.
func (r *rehearsal) installCommands(ctx context.Context) (string, error) {
	if r.untagged != nil {
		return "", r.untagged
	}
	listed, err := output(ctx, r.clone, nil, "git", "ls-files", "README.md", "docs/*.md")
	if err != nil {
		return "", err
	}
	commands := 0
	for _, page := range strings.Fields(listed) {
		content, err := os.ReadFile(filepath.Join(r.clone, page))
		if err != nil {
			return "", err
		}
		lines := installLines(string(content), r.modules[0].path)
		program := aProgram.FindStringSubmatch(string(content))
		if page == "README.md" && (len(lines) == 0 || program == nil) {
			return "", fmt.Errorf("README.md says not how to install: it has %d commands", len(lines))
		}
		if len(lines) == 0 {
			continue
		}
		commands += len(lines)
		if err := r.follow(ctx, page, lines, program); err != nil {
			return "", fmt.Errorf("%s: %w", page, err)
		}
	}
	return fmt.Sprintf("%d commands", commands), nil
}

// installLines are the commands of a page that get or install a module of ours.
func installLines(content, root string) (lines [][]string) {
	for _, block := range aBlock.FindAllStringSubmatch(content, -1) {
		for _, line := range anInstall.FindAllStringSubmatch(block[2], -1) {
			if strings.HasPrefix(line[2]+"/", root+"/") || strings.HasPrefix(line[2], root+"@") {
				lines = append(lines, line[1:])
			}
		}
	}
	return lines
}

func (r *rehearsal) follow(ctx context.Context, page string, lines [][]string, program []string) error {
	files := map[string]string{}
	if program != nil {
		files["main.go"] = program[1]
	}
	dir, err := r.consumer(ctx, strings.NewReplacer("/", "-", ".", "-").Replace(page), files)
	if err != nil {
		return err
	}
	for _, line := range lines {
		if _, err := r.outside(ctx, dir, asUser, "go", line...); err != nil {
			return err
		}
		if line[0] != "get" {
			continue
		}
		got, err := r.outside(ctx, dir, asUser, "go", "list", "-m", "-f", "{{.Version}}", line[1])
		if err != nil || strings.TrimSpace(got) != r.version {
			return fmt.Errorf("go get %s got %q: %w", line[1], strings.TrimSpace(got), err)
		}
	}
	if program == nil {
		return nil
	}
	if _, err := r.outside(ctx, dir, asUser, "go", "mod", "tidy"); err != nil {
		return err
	}
	_, err = r.outside(ctx, dir, asUser, "go", "build", "-o", os.DevNull, ".")
	return err
}
