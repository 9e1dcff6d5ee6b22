package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// rehearsal is a clone with the tags of a version, and the environment of a user whose proxy serves them.
type rehearsal struct {
	root, version string
	work          string // removed at the end
	clone         string
	modules       []module
	env           []string
}

func check(ctx context.Context, root, version string) (err error) {
	r := &rehearsal{root: root, version: version}
	if r.work, err = os.MkdirTemp("", "release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	if r.env, err = proxyEnv(ctx, r.work); err != nil {
		return err
	}
	for _, step := range []struct {
		what string
		run  func(context.Context) (string, error)
	}{
		{"tag a clone", r.tag},
		{"install the library, and build examples/kafka", r.library},
		{"install the commands", r.commands},
		{"compare the API", r.api},
		{"build the archives", r.archives},
	} {
		result, err := step.run(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		fmt.Printf("ok  %s: %s\n", step.what, result)
	}
	return nil
}

func (r *rehearsal) tag(ctx context.Context) (string, error) {
	if dirty, err := output(ctx, r.root, nil, "git", "status", "--porcelain"); err != nil || dirty != "" {
		return "", errors.Join(err, errors.New("not everything is committed:\n"+dirty))
	}
	r.clone = filepath.Join(r.work, "clone")
	if _, err := output(ctx, r.root, nil, "git", "clone", "--quiet", r.root, r.clone); err != nil {
		return "", err
	}
	for _, setting := range []string{"user.name", "user.email"} {
		if _, err := output(ctx, r.clone, nil, "git", "config", setting, "release@localhost"); err != nil {
			return "", err
		}
	}
	tags, err := tag(ctx, r.clone, r.version, time.Now())
	if err != nil {
		return "", err
	}
	if r.modules, err = modulesAt(ctx, r.clone, r.version); err != nil {
		return "", err
	}
	for _, m := range r.modules {
		if err := serve(ctx, filepath.Join(r.work, "proxy"), r.clone, m, r.version, r.version); err != nil {
			return "", err
		}
	}
	return strings.Join(tags, " "), nil
}

// library builds the program that the README links in the module of a user.
func (r *rehearsal) library(ctx context.Context) (string, error) {
	program, err := os.ReadFile(filepath.Join(r.clone, "examples", "kafka", "main.go"))
	if err != nil {
		return "", err
	}
	dir := filepath.Join(r.work, "booking")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), program, 0o644); err != nil {
		return "", err
	}
	for _, command := range [][]string{
		{"mod", "init", "example.com/booking"}, {"get", r.modules[0].path + "@" + r.version}, {"mod", "tidy"},
		{"build", "-o", os.DevNull, "."},
	} {
		if _, err := output(ctx, dir, r.env, "go", command...); err != nil {
			return "", err
		}
	}
	return r.modules[0].path + " " + r.version, nil
}

func (r *rehearsal) commands(ctx context.Context) (string, error) {
	var versions []string
	for _, m := range r.modules {
		if !m.isCommand() {
			continue
		}
		if _, err := output(ctx, r.work, r.env, "go", "install", m.path+"@"+r.version); err != nil {
			return "", err
		}
		version, err := output(ctx, r.work, nil, filepath.Join(r.work, "go", "bin", filepath.Base(m.path)), "version")
		if err != nil {
			return "", err
		}
		if !strings.Contains(version, r.version) {
			return "", fmt.Errorf("%s prints %q", m.path, version)
		}
		versions = append(versions, strings.TrimSpace(version))
	}
	return strings.Join(versions, "; "), nil
}

// api fails if the API has changed more than the version allows.
func (r *rehearsal) api(ctx context.Context) (string, error) {
	last, err := lastTag(ctx, r.root)
	if err != nil || last == "" {
		return "there is no earlier tag", err
	}
	for _, m := range r.modules {
		if m.isCommand() {
			continue
		}
		if _, err := output(ctx, filepath.Join(r.clone, m.dir), nil, "go", "run", "golang.org/x/exp/cmd/gorelease@latest",
			"-base="+last, "-version="+r.version); err != nil {
			return "", err
		}
	}
	return "as the version allows, since " + last, nil
}

// archives builds what the release workflow publishes, except for the image and the bills of materials.
func (r *rehearsal) archives(ctx context.Context) (string, error) {
	goreleaser, err := exec.LookPath("goreleaser")
	if err != nil {
		return "skipped, as goreleaser is not installed: https://goreleaser.com/install", nil
	}
	if _, err := output(ctx, r.clone, nil, "git", "checkout", "--quiet", r.version); err != nil {
		return "", err
	}
	env := append(r.env, "GORELEASER_CURRENT_TAG="+r.version)
	if _, err := output(ctx, r.clone, env, goreleaser, "release", "--clean", "--skip=publish,docker,sbom"); err != nil {
		return "", err
	}
	to := filepath.Join(r.root, ".cache", "release")
	if err := os.RemoveAll(to); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return "", err
	}
	if err := os.CopyFS(to, os.DirFS(filepath.Join(r.clone, ".cache", "dist"))); err != nil {
		return "", err
	}
	return to, nil
}
