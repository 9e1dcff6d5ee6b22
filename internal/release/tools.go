package main

import (
	"context"
	"path/filepath"
	"strings"
)

// The tools of a release, installed into .cache/bin: no module of this repository requires them.
const (
	licenceTool  = "go.elastic.co/go-licence-detector@v0.11.1"
	materialTool = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0"
	apiTool      = "golang.org/x/exp/cmd/apidiff@v0.0.0-20261014143641-f0251eb4aa3e"
)

// tool installs a tool with the settings of the user of the check.
func (r *rehearsal) tool(ctx context.Context, pkg string) (string, error) {
	bin := filepath.Join(r.root, ".cache", "bin")
	if _, err := output(ctx, r.work, []string{"GOBIN=" + bin}, "go", "install", pkg); err != nil {
		return "", err
	}
	name, _, _ := strings.Cut(filepath.Base(pkg), "@")
	return filepath.Join(bin, name), nil
}
