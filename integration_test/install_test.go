package integration_test

import (
	"errors"
	"fmt"
	"go/build"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	modzip "golang.org/x/mod/zip"
)

const rootModule = "github.com/millrace-go/watermill-outbox"

// TestInstall takes the modules from a proxy as they are here, for a program of somebody else: without the replace
// directives, which go ignores in a dependency. The long variant compiles the program as well, which takes minutes on a
// machine that has not done it before.
func TestInstall(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	modules := installable(t, root)
	version := modules[rootModule+"/publisher/nats"].requires[rootModule]
	require.True(t, semver.IsValid(version) && !module.IsPseudoVersion(version),
		"publisher/nats requires the root module at %s: it must be the version that both will be tagged with", version)

	proxy := t.TempDir()
	program := "package main\n\nimport (\n"
	for name, m := range modules {
		for required, at := range m.requires {
			if strings.HasPrefix(required, rootModule) {
				require.Equal(t, version, at, "%s requires %s", name, required)
			}
		}
		serve(t, proxy, name, version, m.dir, m.goMod)
		for _, pkg := range m.packages {
			program += fmt.Sprintf("\t_ %q\n", pkg)
		}
	}
	program += ")\n\nfunc main() {}\n"

	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "go.mod"), []byte("module example.com/outside\n\ngo 1.26.0\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "main.go"), []byte(program), 0o644))
	env := goEnv(t, "GOMODCACHE", "GOPROXY")
	fileURL := func(dir string) string { return "file://" + filepath.ToSlash(dir) }
	// A module cache of its own, or the version would be taken from there when it really exists. No other toolchain has to be fetched into it.
	environment := append(os.Environ(), "GOWORK=off", "GOTOOLCHAIN=local", "GOFLAGS=-mod=mod -modcacherw", "GOSUMDB=off", "GOPRIVATE=", "GONOPROXY=", "GOMODCACHE="+t.TempDir(),
		"GOPROXY="+fileURL(proxy)+","+fileURL(filepath.Join(env["GOMODCACHE"], "cache", "download"))+","+env["GOPROXY"])
	run := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env = outside, environment
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	// The root last: each of the others must bring it.
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(modules))) {
		run("get", name+"@"+version)
	}
	run("list", "-deps", "-f", "{{with .Error}}{{.}}{{end}}", ".")
	run("install", "-n", rootModule+"/cmd/outboxctl@"+version)
	if long {
		run("build", "-trimpath", "-o", os.DevNull, ".") // -trimpath lets the build cache serve the next run
	}
}

func goEnv(t *testing.T, names ...string) map[string]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"env"}, names...)...).Output()
	require.NoError(t, err)
	values := map[string]string{}
	for i, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		values[names[i]] = strings.TrimSpace(line)
	}
	return values
}

type installed struct {
	dir      string
	goMod    string // as it is tagged
	requires map[string]string
	packages []string // that a user can import
}

// installable finds the modules that users require.
func installable(t *testing.T, root string) map[string]installed {
	t.Helper()
	modules := map[string]installed{}
	own := map[string]bool{"bench": true, "examples": true, "integration_test": true, "internal": true}
	require.NoError(t, filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, file)
		if err == nil && entry.IsDir() && (own[rel] || strings.HasPrefix(entry.Name(), ".") && rel != ".") {
			return fs.SkipDir
		}
		if err != nil || entry.Name() != "go.mod" {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		parsed, err := modfile.Parse(file, content, nil)
		if err != nil {
			return err
		}
		m := installed{dir: filepath.Dir(file), goMod: file, requires: map[string]string{}}
		if rel == filepath.Join("cmd", "outboxctl", "go.mod") { // what is installed by its version
			m.goMod = filepath.Join(t.TempDir(), "go.mod")
			if err := os.WriteFile(m.goMod, content, 0o644); err != nil {
				return err
			}
			if err := exec.CommandContext(t.Context(), filepath.Join(root, ".ci", "unreplace"), m.goMod).Run(); err != nil {
				return err
			}
		}
		for _, r := range parsed.Require {
			m.requires[r.Mod.Path] = r.Mod.Version
		}
		m.packages, err = importable(parsed.Module.Mod.Path, m.dir)
		modules[parsed.Module.Mod.Path] = m
		return err
	}))
	return modules
}

func importable(modulePath, dir string) (packages []string, err error) {
	err = walkModule(dir, func(folder string) error {
		pkg, err := build.ImportDir(folder, 0)
		var none *build.NoGoError
		rel, _ := filepath.Rel(dir, folder)
		rel = filepath.ToSlash(rel)
		if errors.As(err, &none) || pkg.Name == "main" || slices.Contains(strings.Split(rel, "/"), "internal") {
			return nil
		}
		packages = append(packages, path.Join(modulePath, rel))
		return err
	})
	return packages, err
}

// walkModule calls fn for every folder of a module.
func walkModule(dir string, fn func(folder string) error) error {
	return filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		_, nested := os.Stat(filepath.Join(file, "go.mod"))
		if file != dir && (nested == nil || strings.HasPrefix(entry.Name(), ".")) {
			return fs.SkipDir
		}
		return fn(file)
	})
}

// serve puts the module into a folder that go takes as a proxy.
func serve(t *testing.T, proxy, name, version, dir, goModFile string) {
	t.Helper()
	at := filepath.Join(proxy, filepath.FromSlash(name), "@v", version)
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	goMod, err := os.ReadFile(goModFile)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(at+".mod", goMod, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(at), "list"), []byte(version+"\n"), 0o644)) // install asks whether there is a newer one
	require.NoError(t, os.WriteFile(at+".info", fmt.Appendf(nil, `{"Version":%q}`, version), 0o644))

	var files []modzip.File
	require.NoError(t, walkModule(dir, func(folder string) error {
		entries, err := os.ReadDir(folder)
		for _, entry := range entries {
			if entry.Type().IsRegular() {
				rel, _ := filepath.Rel(dir, filepath.Join(folder, entry.Name()))
				file := moduleFile{filepath.ToSlash(rel), filepath.Join(dir, rel)}
				if rel == "go.mod" {
					file.file = goModFile
				}
				files = append(files, file)
			}
		}
		return err
	}))
	archive, err := os.Create(at + ".zip")
	require.NoError(t, err)
	defer archive.Close()
	require.NoError(t, modzip.Create(archive, module.Version{Path: name, Version: version}, files))
}

type moduleFile struct{ path, file string }

func (f moduleFile) Path() string                 { return f.path }
func (f moduleFile) Lstat() (fs.FileInfo, error)  { return os.Lstat(f.file) }
func (f moduleFile) Open() (io.ReadCloser, error) { return os.Open(f.file) }
