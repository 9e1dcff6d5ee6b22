// Command lines counts the library's lines of Go and SQL by part: code separate from comments, without blank lines and
// tests.
//
//	go run ./internal/testing/lines [folder]
package main

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// parts lists the folders of each part; a file belongs to the longest matching folder. Files in none are the
// foundation: the root, middleware, schema and their dependencies.
var parts = []struct {
	name    string
	folders []string
}{
	{"schema and foundation", []string{"."}},
	{"forwarder", []string{"forwarder"}},
	{"queue and fleets", []string{"queue", "fleet", "internal/scheduler", "internal/keyed"}},
	{"operators", []string{"admin", "cmd", "move", "internal/move", "internal/envelope", "internal/partitions",
		"internal/clean", "internal/summary", "internal/trend", "internal/words"}},
	{"brokers", []string{"amqp", "broker", "kafka", "nats"}},
	{"observe, idempotency, outboxtest", []string{"observe", "internal/meter", "idempotency", "outboxtest"}},
	{"tests and tools, not counted", []string{"bench", "examples", "integration_test", "internal/testing", "tools"}},
}

// ofQueue matches the statements of internal/sqltext that only the queue runs.
var ofQueue = regexp.MustCompile(`^internal/sqltext/queue`)

type count struct{ code, comments int }

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	counts := make([]count, len(parts))
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		goFile := strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
		if !goFile && !strings.HasSuffix(name, ".sql") {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		c := &counts[partOf(filepath.ToSlash(name))]
		if goFile {
			code, comments := countGo(content)
			c.code += code
			c.comments += comments
			return nil
		}
		for line := range bytes.Lines(content) {
			switch line = bytes.TrimSpace(line); {
			case len(line) == 0:
			case bytes.HasPrefix(line, []byte("--")):
				c.comments++
			default:
				c.code++
			}
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "code\tcomments\tpart\t")
	var sum count
	for i, c := range counts {
		fmt.Fprintf(w, "%d\t%d\t%s\t\n", c.code, c.comments, parts[i].name)
		if i < len(parts)-1 {
			sum.code += c.code
			sum.comments += c.comments
		}
	}
	fmt.Fprintf(w, "%d\t%d\tthe library\t\n", sum.code, sum.comments)
	w.Flush()
}

func partOf(name string) int {
	if ofQueue.MatchString(name) {
		name = "queue/" + filepath.Base(name)
	}
	for folder := filepath.ToSlash(filepath.Dir(name)); ; folder = filepath.ToSlash(filepath.Dir(folder)) {
		for i, p := range parts {
			if slices.Contains(p.folders, folder) {
				return i
			}
		}
	}
}

// countGo counts lines with code, and lines that are only comments.
func countGo(content []byte) (code, comments int) {
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(content))
	var s scanner.Scanner
	s.Init(file, content, nil, scanner.ScanComments)
	lines := map[int]bool{} // line -> has code
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.SEMICOLON && text == "\n" {
			continue
		}
		for i := range strings.Count(text, "\n") + 1 {
			n := file.Line(pos) + i
			lines[n] = lines[n] || tok != token.COMMENT
		}
	}
	for _, isCode := range lines {
		if isCode {
			code++
		} else {
			comments++
		}
	}
	return code, comments
}
