package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	gomodule "golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	modzip "golang.org/x/mod/zip"
)

// serve puts a module at a commit into a folder that the go command takes as a proxy.
func serve(ctx context.Context, proxy, repo string, m module, rev, version string) error {
	escaped, err := gomodule.EscapePath(m.path)
	if err != nil {
		return err
	}
	at := filepath.Join(proxy, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	goMod, err := output(ctx, repo, nil, "git", "show", rev+":"+goModOf(m))
	if err != nil {
		return err
	}
	when, err := output(ctx, repo, nil, "git", "log", "-1", "--format=%cI", rev)
	if err != nil {
		return err
	}
	list, _ := os.ReadFile(filepath.Join(at, "list"))
	for name, content := range map[string]string{
		"list":            string(list) + version + "\n",
		version + ".mod":  goMod,
		version + ".info": fmt.Sprintf(`{"Version":%q,"Time":%q}`, version, strings.TrimSpace(when)),
	} {
		if err := os.WriteFile(filepath.Join(at, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return pack(filepath.Join(at, version+".zip"), repo, m, rev, version)
}

func pack(file, repo string, m module, rev, version string) error {
	archive, err := os.Create(file)
	if err != nil {
		return err
	}
	defer archive.Close()
	subdir := m.dir
	if subdir == "." {
		subdir = ""
	}
	at := gomodule.Version{Path: m.path, Version: version}
	if err := modzip.CreateFromVCS(archive, at, repo, rev, subdir); err != nil {
		return err
	}
	return archive.Close()
}

func goModOf(m module) string { return strings.TrimPrefix(m.dir+"/go.mod", "./") }

// sums returns the lines of go.sum for a module as it is at HEAD.
func sums(ctx context.Context, repo string, m module, version string) ([]string, error) {
	dir, err := os.MkdirTemp("", "release-sums-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	proxy := filepath.Join(dir, "proxy")
	if err := serve(ctx, proxy, repo, m, "HEAD", version); err != nil {
		return nil, err
	}
	escaped, err := gomodule.EscapePath(m.path)
	if err != nil {
		return nil, err
	}
	at := filepath.Join(proxy, filepath.FromSlash(escaped), "@v", version)
	all, err := dirhash.HashZip(at+".zip", dirhash.Hash1)
	if err != nil {
		return nil, err
	}
	goMod, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return os.Open(at + ".mod") })
	return []string{m.path + " " + version + " " + all, m.path + " " + version + "/go.mod " + goMod}, err
}

// proxyEnv returns the environment of a user without this repository, with its own module cache. Modules of others may
// come from the cache of this machine.
func proxyEnv(ctx context.Context, work string) ([]string, error) {
	said, err := output(ctx, work, nil, "go", "env", "GOMODCACHE", "GOPROXY")
	if err != nil {
		return nil, err
	}
	cache, upstream, _ := strings.Cut(strings.TrimSpace(said), "\n")
	files := func(dir ...string) string { return "file://" + filepath.ToSlash(filepath.Join(dir...)) }
	return []string{
		"GOTOOLCHAIN=local", "CGO_ENABLED=0", "GOFLAGS=-modcacherw -trimpath",
		"GOSUMDB=off", "GOPRIVATE=", "GONOPROXY=", "GOBIN=",
		"GOPATH=" + filepath.Join(work, "go"), "GOMODCACHE=" + filepath.Join(work, "go", "pkg", "mod"),
		"GOPROXY=" + files(work, "proxy") + "," + files(cache, "cache", "download") + "," + upstream,
	}, nil
}
