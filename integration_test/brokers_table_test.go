package integration_test

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	conformanceArgs  = "OUTBOX_CONFORMANCE"    // of make conformance
	conformanceChild = "OUTBOX_CONFORMANCE_OF" // the publisher to test, in a child process since it may hang or crash
	conformancePage  = "publishers.md"
)

// TestPublishersConform runs outboxtest.TestPublisher on each publisher and prints the results (make conformance).
func TestPublishersConform(t *testing.T) {
	if name := os.Getenv(conformanceChild); name != "" {
		for _, c := range conformants {
			if c.name == name {
				kills, err := strconv.Atoi(os.Getenv(conformanceArgs))
				require.NoError(t, err)
				c.test(t, kills)
			}
		}
		return
	}
	args, given := os.LookupEnv(conformanceArgs)
	if !given {
		t.Skip("run by make conformance")
	}
	flags := flag.NewFlagSet("make conformance ARGS=", flag.ContinueOnError)
	kills := flags.Int("kills", 10, "how often each server is killed under load")
	only := flags.String("only", "", "regular expression for the names of publishers")
	points := flags.String("points", "", "regular expression for the names of points")
	write := flags.Bool("write", false, "replace the rows in integration_test/publishers.md")
	require.NoError(t, flags.Parse(strings.Fields(args)))
	pattern, err := regexp.Compile(*only)
	require.NoError(t, err)
	var rows []string
	for _, c := range conformants {
		if pattern.MatchString(c.name) {
			rows = append(rows, conformanceRow(t, c.name, *kills, *points))
		}
	}
	require.NotEmpty(t, rows, "-only %q names no publisher", *only)
	fmt.Println("\n" + conformanceHeader() + strings.Join(rows, ""))
	if *write {
		writeRows(t, rows)
	}
}

func conformanceHeader() string {
	header, line := "| publisher | kills | acknowledged | missing |", "|---|---|---|---|"
	for i := range conformancePoints() {
		header += fmt.Sprintf(" %d |", i+1)
		line += "---|"
	}
	return header + "\n" + line + "\n"
}

var (
	endOfPoint = regexp.MustCompile(`--- (PASS|FAIL|SKIP): TestPublishersConform/(\S+) `)
	counted    = regexp.MustCompile(`(\d+) acknowledged, (\d+) missing, (\d+) kills`)
)

// conformanceRow runs the suite in a child process.
func conformanceRow(t *testing.T, name string, kills int, points string) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, "-test.v", "-test.timeout=0", "-test.run=^TestPublishersConform$/"+points)
	cmd.Env = append(os.Environ(), conformanceChild+"="+name, conformanceArgs+"="+strconv.Itoa(kills))
	out, to := io.Pipe()
	cmd.Stdout, cmd.Stderr = to, to
	require.NoError(t, cmd.Start())
	go func() { _ = to.CloseWithError(cmd.Wait()) }() // the child fails if a test of the suite does
	results, counts := map[string]string{}, []string{"", "-", "-", "-"}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Println(time.Now().Format(time.TimeOnly), name+":", lines.Text())
		if end := endOfPoint.FindStringSubmatch(lines.Text()); end != nil {
			results[end[2]] = map[string]string{"PASS": "yes", "FAIL": "**no**", "SKIP": "-"}[end[1]]
		}
		if found := counted.FindStringSubmatch(lines.Text()); found != nil {
			counts = found
		}
	}
	row := fmt.Sprintf("| %s | %s | %s | %s |", name, counts[3], thousands(counts[1]), thousands(counts[2]))
	for _, point := range conformancePoints() {
		result := results[strings.ReplaceAll(point, " ", "_")]
		if result == "" {
			result = "-"
		}
		row += " " + result + " |"
	}
	return row + "\n"
}

// conformancePoints returns the names of the suite's tests.
func conformancePoints() (names []string) {
	suite, err := os.ReadFile("../outboxtest/conformance.go")
	if err != nil {
		panic(err)
	}
	for _, point := range regexp.MustCompile(`(?m)^\t\t\{"([^"]+)", .*, c\.`).FindAllStringSubmatch(string(suite), -1) {
		names = append(names, point[1])
	}
	return names
}

func thousands(digits string) string {
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func writeRows(t *testing.T, rows []string) {
	t.Helper()
	page, err := os.ReadFile(conformancePage)
	require.NoError(t, err)
	text := string(page)
	for _, row := range rows {
		name, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " |")
		old := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(name) + ` \|.*\n`).FindString(text)
		require.NotEmpty(t, old, "%s has no row for %s", conformancePage, name)
		text = strings.Replace(text, old, row, 1)
	}
	require.NoError(t, os.WriteFile(conformancePage, []byte(text), 0o644))
}

// TestConformanceIsDocumented: the page lists the tests of the suite and has a row for each publisher.
func TestConformanceIsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(conformancePage)
	require.NoError(t, err)
	points := conformancePoints()
	require.Len(t, points, 11)
	for i, point := range points {
		assert.Contains(t, string(page), fmt.Sprintf("\n%d. **%s**", i+1, point))
	}
	assert.Contains(t, string(page), "\n"+conformanceHeader())
	for _, c := range conformants {
		assert.Contains(t, string(page), "\n| "+c.name+" |")
	}
}
