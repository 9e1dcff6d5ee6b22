package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/mod/semver"
)

// compatible compares each module with what it exported at the last tag.
func (r *rehearsal) compatible(ctx context.Context) (string, error) {
	last, err := lastTag(ctx, r.root, r.version)
	if err != nil {
		return "", err
	}
	if last == "" {
		return "there is no earlier tag to compare with", nil
	}
	before, err := modulesAt(ctx, r.root, last)
	if err != nil {
		return "", err
	}
	tool, err := r.tool(ctx, apiTool)
	if err != nil {
		return "", err
	}
	tree := filepath.Join(r.work, "before")
	if err := checkOut(ctx, r.clone, tree, last); err != nil {
		return "", err
	}
	var broken []string
	for i, m := range before {
		if m.isCommand() {
			continue // nothing imports it
		}
		export := filepath.Join(r.work, fmt.Sprintf("before-%d.export", i))
		if _, err := output(ctx, filepath.Join(tree, m.dir), nil, tool, "-m", "-w", export, m.path); err != nil {
			return "", err
		}
		said, err := output(ctx, filepath.Join(r.clone, m.dir), nil, tool, "-m", "-incompatible", export, m.path)
		if err != nil {
			return "", err
		}
		if said = strings.TrimSpace(said); said != "" {
			broken = append(broken, m.path+":\n"+said)
		}
	}
	if len(broken) == 0 {
		return "nothing that " + last + " exported has changed", nil
	}
	if !mayBreak(last, r.version) {
		return "", fmt.Errorf("not compatible with %s: raise the version:\n%s", last, strings.Join(broken, "\n"))
	}
	return "changed since " + last + ", as the version says:\n" + indented(strings.Join(broken, "\n")), nil
}

// mayBreak: a minor version may as long as the major one is 0, after that a major one.
func mayBreak(last, version string) bool {
	if semver.Major(last) != semver.Major(version) {
		return true
	}
	return semver.Major(last) == "v0" && semver.MajorMinor(last) != semver.MajorMinor(version)
}
