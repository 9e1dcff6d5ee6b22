package docs

import (
	"encoding/json"
	"go/ast"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// TestWords keeps the words of the glossary in all that a program of this repository prints: errors, log lines, help,
// the page, doctor's findings, metrics, alerts and panels. The third column of docs/reference/glossary.md has what to
// avoid.
func TestWords(t *testing.T) {
	avoid := wordsToAvoid(t)
	texts := 0
	eachPrintedText(t, func(at, text string) {
		texts++
		if word := avoid.FindString(text); word != "" {
			t.Errorf("%s: %q: docs/reference/glossary.md has another word for %q", at, text, word)
		}
	})
	if texts < 1500 {
		t.Errorf("only %d texts were found", texts)
	}
}

// TestWordsOfPages keeps them in the documents and in the comments of exported names as well, since people search for
// the word that they have read. The glossary itself, pages that are written from tests, and decisions are left out.
func TestWordsOfPages(t *testing.T) {
	avoid := wordsToAvoid(t)
	check := func(at, text string) {
		if word := avoid.FindString(strings.Join(strings.Fields(text), " ")); word != "" {
			t.Errorf("%s: docs/reference/glossary.md has another word for %q", at, word)
		}
	}
	for _, page := range append(glob(t, "docs/*/*.md"), "README.md", "examples/README.md", "SECURITY.md") {
		if name := filepath.Base(page); strings.HasPrefix(name, "decisions") ||
			slices.Contains([]string{"glossary.md", "ibx.md", "reliability.md"}, name) {
			continue
		}
		for block := range strings.SplitSeq(read(t, page), "\n\n") {
			first, _, _ := strings.Cut(strings.TrimSpace(block), "\n")
			check(page+": "+first, block)
		}
	}
	comments := 0
	for _, dir := range apiPackages(t) {
		for _, file := range sourcesOf(t, dir) {
			eachExportedComment(file, func(doc *ast.CommentGroup) {
				comments++
				check(positions.Position(doc.Pos()).String(), doc.Text())
			})
		}
	}
	if comments < 800 {
		t.Errorf("only %d comments were found", comments)
	}
}

// eachExportedComment calls each for the comments that go doc shows: of the package, of exported names, and of their
// exported fields and methods.
func eachExportedComment(file *ast.File, each func(doc *ast.CommentGroup)) {
	give := func(docs ...*ast.CommentGroup) {
		for _, doc := range docs {
			if doc != nil {
				each(doc)
			}
		}
	}
	give(file.Doc)
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() {
				give(d.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					if s.Names[0].IsExported() {
						give(d.Doc, s.Doc, s.Comment)
					}
				case *ast.TypeSpec:
					if !s.Name.IsExported() {
						continue
					}
					give(d.Doc, s.Doc, s.Comment)
					ast.Inspect(s.Type, func(n ast.Node) bool {
						if f, ok := n.(*ast.Field); ok && (len(f.Names) == 0 || f.Names[0].IsExported()) {
							give(f.Doc, f.Comment)
						}
						return true
					})
				}
			}
		}
	}
}

// TestTextsBeginLow: an error is often the end of another text, and a line of the log is searched for by its beginning.
func TestTextsBeginLow(t *testing.T) {
	exported, others := allErrors(t)
	for _, p := range slices.Concat(exported, others, logLines(t)) {
		first, _, _ := strings.Cut(p.text, " ")
		if upper := []rune(first); unicode.IsUpper(upper[0]) && strings.ToUpper(first) != first {
			t.Errorf("%s: %q begins with a capital", p.dir, p.text)
		}
		if strings.HasSuffix(p.text, ".") {
			t.Errorf("%s: %q ends with a full stop", p.dir, p.text)
		}
	}
}

// wordsToAvoid matches the words that the glossary has a better one for.
func wordsToAvoid(t *testing.T) *regexp.Regexp {
	var words []string
	for line := range strings.Lines(read(t, "docs/reference/glossary.md")) {
		if columns := strings.Split(line, "|"); len(columns) == 5 {
			for _, quoted := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(columns[3], -1) {
				words = append(words, regexp.QuoteMeta(quoted[1]))
			}
		}
	}
	if len(words) < 20 {
		t.Fatalf("the glossary names %d words to avoid", len(words))
	}
	return regexp.MustCompile(`(?i)\b(` + strings.Join(words, "|") + `)\b`)
}

// statement is how SQL begins, which is for the server.
var statement = regexp.MustCompile(
	`(?i)^\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|ALTER|GRANT|DROP|SET|LOCK|BEGIN|--) ?`)

// notPrinted are folders whose texts are for developers, or for the server.
var notPrinted = []string{
	"integration_test", "testdata", "sqltext", "migrations", "services", "uitest", "pictures", "release", "memory",
	"outboxtest",
}

// eachPrintedText calls each for the texts of Go sources, of the page and of the dashboards, with where they stand.
func eachPrintedText(t *testing.T, each func(at, text string)) {
	err := filepath.WalkDir(".", func(file string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			if file != "." && (strings.HasPrefix(e.Name(), ".") || slices.Contains(notPrinted, e.Name())) {
				return fs.SkipDir
			}
		case filepath.Ext(file) == ".go" && isSource(file):
			ast.Inspect(parsed(t, file), func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.ImportSpec:
					return false
				case *ast.Field:
					n.Tag = nil
				case *ast.BasicLit:
					text, err := strconv.Unquote(n.Value)
					if n.Kind == token.STRING && err == nil && strings.Contains(strings.TrimSpace(text), " ") &&
						!statement.MatchString(text) {
						each(positions.Position(n.Pos()).String(), text)
					}
				}
				return true
			})
		case filepath.Ext(file) == ".html":
			// What stands between tags, and attributes that are shown or read out.
			html := regexp.MustCompile(`\{\{[^}]*\}\}`).ReplaceAllString(read(t, file), "{}")
			for _, found := range regexp.MustCompile(`>([^<>]+)<|(?:title|placeholder|aria-label)="([^"]+)"`).
				FindAllStringSubmatch(html, -1) {
				if text := strings.TrimSpace(found[1] + found[2]); strings.Contains(text, " ") {
					each(file, text)
				}
			}
		case file == filepath.Join("dashboards", "alerts.yaml"):
			for _, found := range regexp.MustCompile(`(?m)^ +(?:summary|description): (.*)$`).FindAllStringSubmatch(
				read(t, file), -1) {
				each(file, found[1])
			}
		case file == filepath.Join("dashboards", "grafana.json"):
			var dashboard any
			if err := json.Unmarshal([]byte(read(t, file)), &dashboard); err != nil {
				t.Fatal(err)
			}
			eachOfPanels(dashboard, func(text string) { each(file, text) })
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// eachOfPanels finds what a dashboard shows.
func eachOfPanels(v any, each func(text string)) {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if text, ok := value.(string); ok && slices.Contains([]string{"title", "description", "legendFormat"}, name) {
				each(text)
			}
			eachOfPanels(value, each)
		}
	case []any:
		for _, value := range v {
			eachOfPanels(value, each)
		}
	}
}
