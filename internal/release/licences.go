package main

import (
	"context"
	"debug/buildinfo"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	gomodule "golang.org/x/mod/module"
)

var (
	//go:embed licences.json
	allowedLicences []byte
	//go:embed licences.tmpl
	licenceTexts []byte
	//go:embed licences_list.tmpl
	licenceList []byte
)

// licences has the licence of each module found that a user of ours compiles, and writes the texts of those that a
// program contains, with their notices, as the licences ask for.
func (r *rehearsal) licences(ctx context.Context) (string, error) {
	all := map[gomodule.Version]bool{}
	for _, m := range r.commandModules() {
		inside := map[gomodule.Version]bool{}
		for _, t := range targets {
			info, err := buildinfo.ReadFile(r.built(m, t))
			if err != nil {
				return "", err
			}
			for _, d := range info.Deps {
				inside[gomodule.Version{Path: d.Path, Version: d.Version}] = true
				all[gomodule.Version{Path: d.Path, Version: d.Version}] = true
			}
		}
		texts := filepath.Join(r.out, m.command()+"_"+r.version+"_LICENSES.txt")
		if err := r.detect(ctx, inside, licenceTexts, texts); err != nil {
			return "", err
		}
		if err := r.appendNotices(inside, texts); err != nil {
			return "", err
		}
	}
	for _, m := range r.modules {
		const form = "{{with .Module}}{{if not .Main}}{{.Path}}@{{.Version}}{{end}}{{end}}"
		dir := filepath.Join(r.work, "outside", m.user())
		listed, err := r.outside(ctx, dir, asUser, "go", "list", "-deps", "-f", form, ".")
		if err != nil {
			return "", err
		}
		for _, at := range strings.Fields(listed) {
			path, version, _ := strings.Cut(at, "@")
			all[gomodule.Version{Path: path, Version: version}] = true
		}
	}
	list := filepath.Join(r.out, "licences.txt")
	if err := r.detect(ctx, all, licenceList, list); err != nil {
		return "", err
	}
	return countLicences(list)
}

// detect runs the tool on some modules, ours left out, with a template for what it writes.
func (r *rehearsal) detect(ctx context.Context, modules map[gomodule.Version]bool, template []byte, to string) error {
	dir, err := r.folder("licences")
	if err != nil {
		return err
	}
	var in strings.Builder
	for _, m := range r.foreign(modules) {
		line, err := json.Marshal(map[string]string{"Path": m.Path, "Version": m.Version, "Dir": r.downloaded(m)})
		if err != nil {
			return err
		}
		in.Write(append(line, '\n'))
	}
	files := map[string][]byte{"modules.json": []byte(in.String()), "rules.json": allowedLicences, "out.tmpl": template}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	tool, err := r.tool(ctx, licenceTool)
	if err != nil {
		return err
	}
	_, err = r.outside(ctx, dir, nil, tool, "-in", "modules.json", "-rules", "rules.json",
		"-noticeTemplate", "out.tmpl", "-noticeOut", to)
	return err
}

func (r *rehearsal) foreign(modules map[gomodule.Version]bool) (all []gomodule.Version) {
	for m := range modules {
		if !slices.ContainsFunc(r.modules, func(ours module) bool { return ours.path == m.Path }) {
			all = append(all, m)
		}
	}
	gomodule.Sort(all)
	return all
}

// downloaded is where the module cache has a module.
func (r *rehearsal) downloaded(m gomodule.Version) string {
	path, _ := gomodule.EscapePath(m.Path)
	version, _ := gomodule.EscapeVersion(m.Version)
	return filepath.Join(r.work, "go", "pkg", "mod", filepath.FromSlash(path)+"@"+version)
}

// appendNotices: section 4(d) of the Apache licence has the notices passed on.
func (r *rehearsal) appendNotices(modules map[gomodule.Version]bool, to string) error {
	file, err := os.OpenFile(to, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, m := range r.foreign(modules) {
		notices, err := filepath.Glob(filepath.Join(r.downloaded(m), "NOTICE*"))
		if err != nil {
			return err
		}
		for _, notice := range notices {
			text, err := os.ReadFile(notice)
			if err != nil {
				return err
			}
			fmt.Fprintf(file, "\n%s\n%s of %s\n\n%s\n", strings.Repeat("-", 80), filepath.Base(notice), m, text)
		}
	}
	return file.Close()
}

// countLicences counts the last words of the lines of a list.
func countLicences(list string) (string, error) {
	content, err := os.ReadFile(list)
	if err != nil {
		return "", err
	}
	counts, modules := map[string]int{}, 0
	for line := range strings.Lines(string(content)) {
		if words := strings.Fields(line); len(words) > 0 {
			counts[words[len(words)-1]]++
			modules++
		}
	}
	var said []string
	for name, count := range counts {
		said = append(said, fmt.Sprintf("%s %d", name, count))
	}
	slices.Sort(said)
	return fmt.Sprintf("%d modules: %s", modules, strings.Join(said, ", ")), nil
}
