package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

const changelogFile = "CHANGELOG.md"

// turned makes the unreleased section that of a version, and begins a new one, unless the version has one already.
func turned(text, version string, when time.Time) string {
	if _, has := section(text, version); has {
		return text
	}
	heading := "## Unreleased\n\n## " + version + " - " + when.UTC().Format(time.DateOnly) + "\n"
	return strings.Replace(text, "## Unreleased\n", heading, 1)
}

// section is what stands below the heading of a version.
func section(text, version string) (body string, found bool) {
	heading := regexp.MustCompile(`(?m)^## \[?` + regexp.QuoteMeta(version) + `\]?( - .*)?\n`)
	at := heading.FindStringIndex(text)
	if at == nil {
		return "", false
	}
	body, _, _ = strings.Cut(text[at[1]:], "\n## ")
	return strings.TrimSpace(body), true
}

var (
	aLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	aHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noAnchor = regexp.MustCompile(`[^\w\- ]`)
	anEntry  = regexp.MustCompile(`(?m)^- \S`)
)

// brokenLinks are those of a text at the root of a repository that lead to no file, or to no heading of one.
func brokenLinks(repo, text string) (broken []string) {
	for _, link := range aLink.FindAllStringSubmatch(text, -1) {
		if strings.Contains(link[1], ":") {
			continue // another site's
		}
		file, anchor, _ := strings.Cut(link[1], "#")
		content, err := os.ReadFile(filepath.Join(repo, filepath.FromSlash(file)))
		info, statErr := os.Stat(filepath.Join(repo, filepath.FromSlash(file)))
		isFolder := statErr == nil && info.IsDir()
		if err != nil && !isFolder || anchor != "" && !hasAnchor(string(content), anchor) {
			broken = append(broken, link[1])
		}
	}
	return broken
}

// hasAnchor: whether GitHub makes this anchor of one of the headings.
func hasAnchor(page, anchor string) bool {
	for _, heading := range aHeading.FindAllStringSubmatch(page, -1) {
		if strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(heading[1]), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}

func (r *rehearsal) changelog(context.Context) (string, error) {
	content, err := os.ReadFile(filepath.Join(r.root, changelogFile))
	if err != nil {
		return "", err
	}
	body, found := section(turned(string(content), r.version, time.Now()), r.version)
	entries := len(anEntry.FindAllString(body, -1))
	switch broken := brokenLinks(r.root, body); {
	case !found:
		return "", fmt.Errorf("there is neither a section ## %s nor ## Unreleased", r.version)
	case entries == 0:
		return "", errors.New("the section has no entries")
	case len(broken) > 0:
		return "", fmt.Errorf("links that lead nowhere: %s", strings.Join(broken, ", "))
	}
	return fmt.Sprintf("%d entries", entries), nil
}

// outdated is what a page may say only as long as there is no release.
var outdated = regexp.MustCompile(`(?i)[^\n]*(nothing is released|(until|after|before) the first release)[^\n]*`)

func (r *rehearsal) pages(ctx context.Context) (string, error) {
	if r.untagged != nil {
		return "", r.untagged
	}
	listed, err := output(ctx, r.clone, nil, "git", "ls-files", "*.md")
	if err != nil {
		return "", err
	}
	pages := strings.Fields(listed)
	var wrong []string
	for _, page := range pages {
		content, err := os.ReadFile(filepath.Join(r.clone, page))
		if err != nil {
			return "", err
		}
		body := string(content)
		if page == changelogFile {
			continue // it may speak of the time before
		}
		for _, line := range outdated.FindAllString(body, -1) {
			wrong = append(wrong, page+": "+strings.TrimSpace(line))
		}
	}
	if len(wrong) > 0 {
		return "", fmt.Errorf("put it between <!--unreleased--> and <!--/unreleased-->:\n%s", strings.Join(wrong, "\n"))
	}
	return fmt.Sprintf("%d pages", len(pages)), nil
}
