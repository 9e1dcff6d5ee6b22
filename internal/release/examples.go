package main

import (
	"context"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// example is a folder of examples/ that is a program.
type example struct {
	name    string
	files   map[string]string // without tests
	imports []string          // of our repository
}

// examples copies each example out, as somebody would who begins with it, makes a module of it and has go find what it
// needs. Those that share packages of examples/, or start servers with internal/services, which no module requires and
// so gets no tag, are copied with these.
func (r *rehearsal) examples(ctx context.Context) (string, error) {
	if r.untagged != nil {
		return "", r.untagged
	}
	all, err := examplesIn(filepath.Join(r.clone, "examples"))
	if err != nil {
		return "", err
	}
	var alone, together []string
	for _, e := range all {
		if !e.standsAlone(r.modules[0].path) {
			together = append(together, e.name)
			continue
		}
		alone = append(alone, e.name)
		dir, err := r.consumer(ctx, e.module(), e.files)
		if err != nil {
			return "", err
		}
		if err := r.build(ctx, dir, e.imports, e.name, "."); err != nil {
			return "", fmt.Errorf("examples/%s: %w", e.name, err)
		}
	}
	if err := r.examplesTogether(ctx, all, together); err != nil {
		return "", err
	}
	return fmt.Sprintf("alone %s; with what they share %s", strings.Join(alone, ", "), strings.Join(together, ", ")), nil
}

func (r *rehearsal) examplesTogether(ctx context.Context, all []example, together []string) error {
	root := r.modules[0].path
	dir, err := r.folder("outside", "examples-together")
	if err != nil {
		return err
	}
	if err := copyGo(filepath.Join(r.clone, "examples"), dir); err != nil {
		return err
	}
	if _, err := r.outside(ctx, dir, nil, "go", "mod", "init", root+"/examples"); err != nil {
		return err
	}
	services := root + "/internal/services"
	if _, err := r.outside(ctx, dir, nil, "go", "mod", "edit", "-require", services+"@v0.0.0",
		"-replace", services+"="+filepath.Join(r.clone, "internal", "services")); err != nil {
		return err
	}
	var imports []string
	for _, e := range all {
		imports = append(imports, e.imports...)
	}
	for _, name := range together {
		if err := r.build(ctx, dir, imports, name, "./"+name); err != nil {
			return fmt.Errorf("examples/%s: %w", name, err)
		}
	}
	return nil
}

// build gets the modules of ours that are imported at the version, and the newest of all others.
func (r *rehearsal) build(ctx context.Context, dir string, imports []string, name, pkg string) error {
	for _, m := range slices.Backward(r.modules) {
		if !slices.ContainsFunc(imports, func(i string) bool { return r.moduleOf(i) == m.path }) {
			continue
		}
		if _, err := r.outside(ctx, dir, asUser, "go", "get", m.path+"@"+r.version); err != nil {
			return err
		}
	}
	if _, err := r.outside(ctx, dir, asUser, "go", "mod", "tidy"); err != nil {
		return err
	}
	_, err := r.outside(ctx, dir, asUser, "go", "build", "-o", name+".program", pkg)
	return err
}

// moduleOf is the module with the longest path that a package may be of.
func (r *rehearsal) moduleOf(pkg string) (found string) {
	for _, m := range r.modules {
		if strings.HasPrefix(pkg+"/", m.path+"/") && len(m.path) > len(found) {
			found = m.path
		}
	}
	return found
}

func (e example) module() string { return "example-" + e.name }

func (e example) standsAlone(root string) bool {
	return !slices.ContainsFunc(e.imports, func(i string) bool {
		return strings.HasPrefix(i, root+"/examples/") || strings.HasPrefix(i, root+"/internal/")
	})
}

// examplesIn reads the programs directly below a folder.
func examplesIn(dir string) (all []example, err error) {
	folders, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, folder := range folders {
		e := example{name: folder.Name(), files: map[string]string{}}
		files, err := filepath.Glob(filepath.Join(dir, folder.Name(), "*.go"))
		if err != nil {
			return nil, err
		}
		isProgram := false
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			content, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, content, parser.ImportsOnly)
			if err != nil {
				return nil, err
			}
			isProgram = parsed.Name.Name == "main"
			e.files[filepath.Base(file)] = string(content)
			for _, i := range parsed.Imports {
				imported, _ := strconv.Unquote(i.Path.Value)
				e.imports = append(e.imports, imported)
			}
		}
		if isProgram {
			all = append(all, e)
		}
	}
	return all, nil
}

// copyGo copies the Go files of a tree, but for tests.
func copyGo(from, to string) error {
	return fs.WalkDir(os.DirFS(from), ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return err
		}
		return copyFile(filepath.Join(from, file), filepath.Join(to, file))
	})
}
