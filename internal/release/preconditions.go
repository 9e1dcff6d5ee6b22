package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/mod/semver"
)

func (r *rehearsal) newer(ctx context.Context) (string, error) {
	last, err := lastTag(ctx, r.root, "")
	switch {
	case err != nil:
		return "", err
	case last == "":
		return "there is none", nil
	case semver.Compare(r.version, last) <= 0:
		return "", fmt.Errorf("%s is tagged", last)
	}
	return last, nil
}

func (r *rehearsal) committed(ctx context.Context) (string, error) {
	changed, err := output(ctx, r.root, nil, "git", "status", "--porcelain")
	if err != nil || changed == "" {
		return "", err
	}
	return "", errors.New(changed)
}

// required: go ignores the replace directives of a dependency, so a version that is not there could not be installed.
func (r *rehearsal) required(context.Context) (string, error) {
	ours := map[string]bool{}
	for _, m := range r.modules {
		ours[m.path] = true
	}
	var wrong []string
	for _, m := range r.modules {
		for _, required := range m.file.Require {
			if ours[required.Mod.Path] && required.Mod.Version != r.version {
				wrong = append(wrong, goModOf(m)+" requires "+required.Mod.String())
			}
			if !ours[required.Mod.Path] && strings.HasPrefix(required.Mod.Path, r.modules[0].path+"/") {
				wrong = append(wrong, goModOf(m)+" requires "+required.Mod.Path+", which gets no tag")
			}
		}
	}
	if len(wrong) > 0 {
		return "", errors.New(strings.Join(wrong, "\n"))
	}
	return fmt.Sprintf("%d modules", len(r.modules)), nil
}

func (r *rehearsal) api(ctx context.Context) (string, error) {
	_, err := output(ctx, r.root, nil, "go", "test", "-count=1", "-run", "TestAPI$", "./internal/docs")
	return "", err
}

func (r *rehearsal) tidy(ctx context.Context) (string, error) {
	listed, err := output(ctx, r.root, nil, "git", "ls-files", "go.mod", "*/go.mod")
	if err != nil {
		return "", err
	}
	var wrong []error
	files := strings.Fields(listed)
	for _, file := range files {
		dir := strings.TrimSuffix(r.root+"/"+file, "/go.mod")
		if _, err := output(ctx, dir, nil, "go", "mod", "tidy", "-diff"); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", file, err))
		}
	}
	return fmt.Sprintf("%d modules", len(files)), errors.Join(wrong...)
}
