package cli

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	gotoken "go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/millrace-go/watermill-outbox/admin"
)

// answers lists all values that the sources pass to show and json, by file and expression: their row in the list of
// docs/reference/outboxctl.md, and a value of their type.
var answers = map[string]struct {
	row   string
	value any
}{
	"act.go: answer":   {"acts on messages", acted{}},
	"audit.go: answer": {"`audit`", audited{}},
	"check.go: s":      {"`check`", status{}},
	"clean.go: r":      {"`clean`", admin.CleanResult{}},
	"doctor.go: map[string]any{\"findings\": findings}": {
		"`doctor`", map[string]any{"findings": []admin.Finding(nil)},
	},
	"errors.go: map[string]any{\"groups\": groups}": {"`errors`", map[string]any{"groups": []errorGroup(nil)}},
	"keys.go: map[string]any{\"heads\": heads, \"more\": more}": {
		"`keys blocked`", map[string]any{"heads": []admin.Message(nil), "more": false},
	},
	"messages.go: shown": {"`outbox show`", shown{Message: &admin.Message{}}},
	"migrate.go: migrations(list)": {
		"`migrate up`", map[string]any{"migrations": []migration(nil)},
	},
	"migrate.go: migrations(ran)": {
		"`migrate up`", map[string]any{"migrations": []migration(nil)},
	},
	"migrate.go: map[string]any{\"files\": named(files)}": {"`migrate print`", map[string]any{"files": named(nil)}},
	"partitions.go: map[string]any{\"partitions\": list}": {
		"`partitions list`", map[string]any{"partitions": []admin.Partition(nil)},
	},
	"partitions.go: r":            {"`partitions maintain`", admin.PartitionsResult{}},
	"move.go: moved{false, r}":    {"`import`", moved{}},
	"move.go: moved{true, tried}": {"`import`", moved{}},
	"print.go: value":             {}, // part of show
	"search.go: list":             {"`outbox list`", &admin.List{}},
	"stats.go: s":                 {"`stats`", admin.Stats{}},
	"topics.go: answer":           {"`topics pause`", topicAct{}},
	"version.go: v":               {"`version`", release{}},
	"topics.go: map[string]any{\"topics\": s.Topics}": {
		"`topics list`", map[string]any{"topics": []admin.TopicStats(nil)},
	},
}

// page is the list of fields in docs/reference/outboxctl.md.
type page struct {
	t    *testing.T
	rows map[string]string // by their beginning

	written map[string][]string // fields of each row, by its beginning
}

// lists fails for each field and exported type of a value that its row does not list.
func (p page) lists(row string, v any) {
	list := ""
	for begins, names := range p.rows {
		if strings.HasPrefix(begins, row) {
			list = names
		}
	}
	if list == "" {
		p.t.Errorf("the list has no row for %s", row)
		return
	}
	names := namesOf(reflect.ValueOf(v))
	p.written[row] = append(p.written[row], names...)
	for _, name := range names {
		if !strings.Contains(list, "`"+name+"`") {
			p.t.Errorf("the row of %s does not list %q", row, name)
		}
	}
}

// namesOf returns the names of the JSON fields of a value. The fields of an exported type are explained by its doc
// comment, and api.txt lists them: it returns the name of the type instead.
func namesOf(v reflect.Value) (names []string) {
	of := v.Type()
	for of.Kind() == reflect.Slice || of.Kind() == reflect.Pointer {
		of, v = of.Elem(), reflect.Zero(of.Elem())
	}
	exported := strings.HasSuffix(of.PkgPath(), "/admin")
	byField := strings.HasSuffix(of.PkgPath(), "/cli") || strings.HasSuffix(of.PkgPath(), "/move")
	switch {
	case exported && of.Kind() == reflect.Struct:
		return []string{of.Name()}
	case of.Kind() == reflect.Map:
		for _, key := range v.MapKeys() {
			names = append(append(names, key.String()), namesOf(reflect.ValueOf(v.MapIndex(key).Interface()))...)
		}
	case of.Kind() == reflect.Struct && byField:
		for i := range of.NumField() {
			if f := of.Field(i); !f.Anonymous {
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				names = append(names, name)
			}
			names = append(names, namesOf(v.Field(i))...)
		}
	}
	return names
}

// TestDocumentListsTheFields: each field that a command writes as JSON, or its type, is in the list of
// docs/reference/outboxctl.md, as docs/reference/stability.md promises.
func TestDocumentListsTheFields(t *testing.T) {
	text, err := os.ReadFile("testdata/document.md")
	if err != nil {
		t.Fatal(err)
	}
	p := page{t: t, rows: map[string]string{}, written: map[string][]string{}}
	_, list, _ := strings.Cut(string(text), "## JSON")
	for line := range strings.Lines(list) {
		if command, fields, ok := strings.Cut(line, ": "); ok && strings.HasPrefix(line, "- ") {
			p.rows[strings.TrimPrefix(command, "- ")] = fields
		}
	}
	found := map[string]bool{}
	for _, where := range handedOver(t) {
		if _, known := answers[where]; !known {
			t.Errorf("%s is written as JSON: add it to answers", where)
		}
		found[where] = true
	}
	for where, a := range answers {
		if !found[where] {
			t.Errorf("%s is not written any more", where)
		}
		if a.row != "" {
			p.lists(a.row, a.value)
		}
	}
	p.listsNoOther()
}

// listsNoOther fails for each name in back-quotes that a row has and no command writes. Values are in parentheses.
func (p page) listsNoOther() {
	brackets := regexp.MustCompile(`\([^)]*\)`)
	for begins, list := range p.rows {
		var known []string
		for row, fields := range p.written {
			if strings.HasPrefix(begins, row) {
				known = append(known, fields...)
			}
		}
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(brackets.ReplaceAllString(list, ""), -1) {
			if !slices.Contains(known, name[1]) && !strings.HasPrefix(name[1], "--") {
				p.t.Errorf("the row of %s lists %q, which no command writes there", begins, name[1])
			}
		}
	}
}

// handedOver returns the first arguments of all calls of show and json in this package.
func handedOver(t *testing.T) (all []string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	set := gotoken.NewFileSet()
	for _, name := range files {
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && (f.Sel.Name == "show" || f.Sel.Name == "json") {
				var arg bytes.Buffer
				if err := printer.Fprint(&arg, set, call.Args[0]); err != nil {
					t.Fatal(err)
				}
				all = append(all, fmt.Sprintf("%s: %s", name, &arg))
			}
			return true
		})
	}
	return all
}
