package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// target is what a program is built for.
type target struct{ os, arch string }

var targets = []target{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}

func (m module) command() string { return path.Base(m.path) }

// commandModules are those that go install is for.
func (r *rehearsal) commandModules() (all []module) {
	for _, m := range r.modules {
		if m.isCommand() {
			all = append(all, m)
		}
	}
	return all
}

func (r *rehearsal) installed(m module) string {
	return filepath.Join(r.work, "go", "bin", m.command())
}

func (r *rehearsal) commands(ctx context.Context) (string, error) {
	var said []string
	for _, m := range r.commandModules() {
		if _, err := r.outside(ctx, r.work, nil, "go", "install", m.path+"@"+r.version); err != nil {
			return "", err
		}
		version, err := r.outside(ctx, r.work, nil, r.installed(m), "version")
		if err != nil {
			return "", err
		}
		if !strings.Contains(version, r.version) {
			return "", fmt.Errorf("%s version says %q", m.command(), version)
		}
		said = append(said, strings.TrimSpace(version))
	}
	return strings.Join(said, "; "), nil
}

// taggedCommands builds a checkout of the tag, as makers of packages do: what go.sum has must be what the
// proxy serves.
func (r *rehearsal) taggedCommands(ctx context.Context) (string, error) {
	for _, m := range r.commandModules() {
		tree := filepath.Join(r.work, "tagged", m.command())
		if err := checkOut(ctx, r.clone, tree, m.tag(r.version)); err != nil {
			return "", err
		}
		readOnly := []string{"GOFLAGS=-modcacherw -trimpath -mod=readonly"}
		if _, err := r.outside(ctx, filepath.Join(tree, m.dir), readOnly, "go", "build", "-o", os.DevNull, "."); err != nil {
			return "", err
		}
	}
	return "", nil
}

// programs are built from the proxy too, so they say their version and are what go install would have made.
func (r *rehearsal) programs(ctx context.Context) (string, error) {
	count := 0
	for _, m := range r.commandModules() {
		for _, t := range targets {
			if err := r.program(ctx, m, t); err != nil {
				return "", fmt.Errorf("%s for %s/%s: %w", m.command(), t.os, t.arch, err)
			}
			count++
		}
	}
	return fmt.Sprintf("%d programs", count), nil
}

func (r *rehearsal) program(ctx context.Context, m module, t target) error {
	home := filepath.Join(r.work, "programs", t.os+"-"+t.arch)
	env := []string{"GOPATH=" + home, "GOOS=" + t.os, "GOARCH=" + t.arch}
	if _, err := r.outside(ctx, r.work, env, "go", "install", m.path+"@"+r.version); err != nil {
		return err
	}
	// go install puts what is not for this machine one folder deeper.
	found, err := filepath.Glob(filepath.Join(home, "bin", "*", m.command()))
	if err != nil {
		return err
	}
	found = append(found, filepath.Join(home, "bin", m.command()))
	built := r.built(m, t)
	if err := copyFile(found[0], built); err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(built)
	if err != nil {
		return err
	}
	if info.Main.Version != r.version {
		return fmt.Errorf("it says that it is %s", info.Main.Version)
	}
	for _, dependency := range info.Deps {
		if dependency.Replace != nil {
			return errors.New("it has a replaced module: " + dependency.Path)
		}
	}
	return nil
}

// built is where the program stays.
func (r *rehearsal) built(m module, t target) string {
	return filepath.Join(r.out, strings.Join([]string{m.command(), r.version, t.os, t.arch}, "_"), m.command())
}
