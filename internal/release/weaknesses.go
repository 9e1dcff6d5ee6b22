package main

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

const vulnDatabase = "https://vuln.go.dev/index/db.json"

// weaknesses needs the database of the Go project; without it nothing is known, which is not the same as nothing found.
func (r *rehearsal) weaknesses(ctx context.Context) (string, error) {
	asking, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(asking, http.MethodHead, vulnDatabase, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("%w: %s cannot be reached: run make vuln where it can: %w", errNotChecked, vulnDatabase, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		const said = "%w: %s answers %s: run make vuln where it can be reached"
		return "", fmt.Errorf(said, errNotChecked, vulnDatabase, resp.Status)
	}
	return makes("vuln")(r, ctx)
}
