package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// materials writes a bill of materials for each program, read from the program itself, and for each other module, in
// CycloneDX's form.
func (r *rehearsal) materials(ctx context.Context) (string, error) {
	tool, err := r.tool(ctx, materialTool)
	if err != nil {
		return "", err
	}
	components := 0
	for _, m := range r.modules {
		if m.isCommand() {
			for _, t := range targets {
				to := filepath.Dir(r.built(m, t)) + ".cdx.json"
				if _, err := r.outside(ctx, r.work, nil, tool, "bin", "-json", "-std", "-licenses",
					"-version", r.version, "-output", to, r.built(m, t)); err != nil {
					return "", err
				}
				count, err := componentsOf(to, m.path, r.version)
				if err != nil {
					return "", err
				}
				components += count
			}
			continue
		}
		to := filepath.Join(r.out, strings.ReplaceAll(strings.TrimPrefix(m.tag(r.version), "/"), "/", "_")+".cdx.json")
		if _, err := r.outside(ctx, r.work, nil, tool, "mod", "-json", "-type", "library", "-licenses",
			"-output", to, filepath.Join(r.clone, m.dir)); err != nil {
			return "", err
		}
		count, err := componentsOf(to, m.path, r.version)
		if err != nil {
			return "", err
		}
		components += count
	}
	return fmt.Sprintf("%d components", components), nil
}

// componentsOf counts what a bill lists, and fails if it is that of something else.
func componentsOf(file, path, version string) (int, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	var bill struct {
		Metadata struct {
			Component struct{ Name, Version string }
		}
		Components []struct{ Name, Version string }
	}
	if err := json.Unmarshal(content, &bill); err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	if of := bill.Metadata.Component; of.Name != path || of.Version != version || len(bill.Components) == 0 {
		const said = "%s is of %s %s, with %d components"
		return 0, fmt.Errorf(said, filepath.Base(file), of.Name, of.Version, len(bill.Components))
	}
	return len(bill.Components), nil
}
