package integration_test

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// generatedPages are pages that a test writes or compares, and the one that holds what the benchmark printed.
var generatedPages = []string{
	"docs/reference/performance.md", "docs/reference/metrics.md", "docs/reference/outboxctl.md", "docs/reference/ibx.md",
	"docs/reference/configuration.md", "docs/reference/errors.md", "docs/reference/reliability.md",
	"docs/run/night.md", "docs/run/scale.md",
}

const aNumber = `\d[\d,]*(?:\.\d+)?`

var (
	unitsOfTime = map[string]time.Duration{
		"ms": time.Millisecond, "s": time.Second, "second": time.Second, "min": time.Minute, "minute": time.Minute,
		"h": time.Hour, "hour": time.Hour, "day": 24 * time.Hour,
	}
	aFigure = regexp.MustCompile(`(?:^|[^\w.#/-])(` + aNumber +
		`) ?(ms|us|µs|s|seconds?|min|minutes?|h|hours?|days?|[kKMG]i?B|bytes|(?:msg|tx)?/s|x|%|times|into|` +
		`million|messages|rows|attempts|alerts|lanes|connections|statements|queries)(?:\W|$)`)
	// A figure in words says no less than one in digits, and nothing could look it up.
	inWords = regexp.MustCompile(
		`(?i)\b(?:half|third|quarter|eighth|tenth|twice|thrice|two|three|four|five|six|seven|eight|nine|ten|dozens|hundreds?|thousands?|millions?)` +
			`(?: of| as)?(?: an?| the| that)? ` +
			`(?:seconds?|minutes?|hours?|days?|times|much|many|fast|slow|cost|speed|messages|rows|attempts|bytes|looks|on ` +
			`average)\b`)
	aDefault  = regexp.MustCompile(`(?:^|[^\w.#/-])(` + aNumber + `)(?:,|$| \|)`)
	inCode    = regexp.MustCompile("`[^`]+`")
	aName     = regexp.MustCompile(`\w+`)
	anExample = regexp.MustCompile("(?ms)^```.*?^```$")
	aConfig   = regexp.MustCompile("^\\| `(\\w+)\\.\\w+Config`|^\\| `(\\w+)\\.Config`")
	aSum      = regexp.MustCompile(`(` + aNumber + `)(?: x (` + aNumber + `))? ?([kM]B|ms|s)?(?: / (` +
		aNumber + `))? = \**(` + aNumber + `) ?([kM]B|ms|s)?\b`)
)

// TestDocumentsFigures: each figure of the documents is one of docs/reference/performance.md, a value that the code
// gives to what is named beside it, worked out on the spot, or in a table that names the command which prints it.
// Others belong nowhere.
func TestDocumentsFigures(t *testing.T) {
	t.Parallel()
	pages, defaults := documents(t), defaultsOfTheCode(t)
	benchmark := map[string]bool{}
	for _, found := range aFigure.FindAllStringSubmatch(pages["docs/reference/performance.md"], -1) {
		benchmark[found[1]+" "+found[2]] = true
	}
	for _, ratio := range benchmarkRatios(t, pages) {
		for _, prose := range []string{" times", " into"} { // which rounds
			benchmark[strconv.FormatFloat(ratio, 'f', 1, 64)+prose], benchmark[strconv.FormatFloat(ratio, 'f', 0, 64)+
				prose] = true, true
		}
	}
	for page, content := range pages {
		if page != "README.md" && !strings.HasPrefix(page, "docs/") || slices.Contains(generatedPages, page) ||
			strings.HasPrefix(page, "docs/reference/decisions") {
			continue
		}
		printed := map[string]bool{} // by the commands of a table
		var pkg, header string
		for _, block := range blocksOf(content) {
			if !strings.HasPrefix(block, "|") {
				header, pkg = "", ""
			} else if header == "" {
				header = block
			}
			if found := aConfig.FindStringSubmatch(block); found != nil {
				pkg = found[1] + found[2] + "."
			}
			named := map[quantity]bool{}
			for _, span := range inCode.FindAllString(block, -1) {
				for _, n := range aName.FindAllString(span, -1) {
					maps.Copy(named, defaults[pkg+plainName(n)])
				}
			}
			for result := range workedOut(t, page, block) {
				printed[result] = true
			}
			text := inCode.ReplaceAllString(block, "")
			for _, words := range inWords.FindAllString(text, -1) {
				t.Errorf("%s says %q in words, which nobody can look up: write it in digits, or leave it out: %s", page,
					words, block)
			}
			for _, found := range aFigure.FindAllStringSubmatch(text, -1) {
				said := found[1] + " " + found[2]
				maps.Copy(named, defaults[found[2]])
				maps.Copy(named, defaults[found[2]+".count"]) // of the package that is named after it
				switch {
				case strings.Contains(header, "| command |"):
					printed[said] = true
				case named[quantityOf(t, found[1], found[2])], printed[said], benchmark[said]:
				default:
					t.Errorf("%s says %q, and nothing prints that: %s", page, said, block)
				}
			}
			if cells := strings.Split(text, "|"); strings.Contains(header, "| default |") && block != header && len(cells) > 4 {
				for _, found := range aDefault.FindAllStringSubmatch(strings.TrimSpace(cells[3]), -1) {
					assert.True(t, named[quantityOf(t, found[1], "")], "%s says %s, which is the default of no field there: %s", page,
						found[1], block)
				}
			}
		}
	}
}

// blocksOf are the paragraphs of a page without its examples; each row of a table is one.
func blocksOf(content string) (all []string) {
	for _, paragraph := range strings.Split(anExample.ReplaceAllString(content, ""), "\n\n") {
		if paragraph = strings.TrimSpace(paragraph); strings.HasPrefix(paragraph, "|") {
			all = append(all, strings.Split(paragraph, "\n")...)
		} else {
			all = append(all, strings.ReplaceAll(paragraph, "\n", " "))
		}
	}
	return all
}

// workedOut checks what a block works out, and yields its parts and results.
func workedOut(t *testing.T, page, block string) map[string]bool {
	t.Helper()
	parts := map[string]bool{}
	for _, found := range aSum.FindAllStringSubmatch(block, -1) {
		left := amountOf(t, found[1], found[3])
		if found[2] != "" {
			left = amountOf(t, found[1], "") * amountOf(t, found[2], found[3])
		}
		if found[4] != "" {
			left /= amountOf(t, found[4], "")
		}
		right := amountOf(t, found[5], found[6])
		assert.InDelta(t, 1, left/right, 0.05, "%s: %s", page, found[0])
		parts[found[1]+" x"], parts[found[5]+" "+found[6]], parts[found[5]+" connections"] = true, true, true
	}
	return parts
}

func amountOf(t *testing.T, n, unit string) float64 {
	t.Helper()
	f, err := strconv.ParseFloat(strings.ReplaceAll(n, ",", ""), 64)
	require.NoError(t, err)
	return f * map[string]float64{"": 1, "s": 1, "ms": 1e-3, "kB": 1e3, "MB": 1e6}[unit]
}
