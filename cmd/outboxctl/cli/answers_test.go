package cli

import (
	"bytes"
	"encoding"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	gotoken "go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/admin"
)

// answers lists all values that the sources pass to show and json, by file and expression: their row in the table of
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

// parts are the types that answers consist of, with their own rows.
var parts = map[reflect.Type]string{
	reflect.TypeFor[admin.Message]():        "`outbox show`",
	reflect.TypeFor[admin.Progress]():       "`progress`",
	reflect.TypeFor[admin.Event]():          "an event",
	reflect.TypeFor[admin.Filter]():         "a `filter`",
	reflect.TypeFor[admin.Result]():         "the `result`",
	reflect.TypeFor[admin.AuditEntry]():     "an entry",
	reflect.TypeFor[admin.TopicStats]():     "a topic",
	reflect.TypeFor[admin.Pause]():          "a pause",
	reflect.TypeFor[admin.Partition]():      "a partition",
	reflect.TypeFor[admin.ForwarderStats](): "a forwarder",
	reflect.TypeFor[admin.Finding]():        "a finding",
	reflect.TypeFor[errorGroup]():           "a group",
	reflect.TypeFor[migration]():            "a migration",
	reflect.TypeFor[sqlFile]():              "a file",
}

// page is the table of docs/reference/outboxctl.md.
type page struct {
	t    *testing.T
	rows map[string]string // by their beginning
	seen map[reflect.Type]bool

	written map[string][]string // fields of each row, by its beginning
}

// lists fails for each field of a value, and of its parts, that a row does not list.
func (p page) lists(row string, v reflect.Value) {
	list := ""
	for begins, fields := range p.rows {
		if strings.HasPrefix(begins, row) {
			list = fields
		}
	}
	if list == "" {
		p.t.Errorf("the table has no row for %s", row)
		return
	}
	fields := fieldsOf(v)
	p.written[row] = append(p.written[row], slices.Collect(maps.Keys(fields))...)
	for name, of := range fields {
		if !strings.Contains(list, "`"+name+"`") {
			p.t.Errorf("the row of %s does not list %q", row, name)
		}
		for of.Kind() == reflect.Slice || of.Kind() == reflect.Pointer || of.Kind() == reflect.Map {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || isText(of) || p.seen[of] {
			continue
		}
		p.seen[of] = true
		if parts[of] == "" {
			p.t.Errorf("%q of %s has fields, but no row of its own", name, row)
			continue
		}
		p.lists(parts[of], reflect.Zero(of))
	}
}

// isText reports whether a struct is not a JSON object, or one that the page explains once.
func isText(t reflect.Type) bool {
	return t == reflect.TypeFor[time.Time]() || t == reflect.TypeFor[admin.Count]() ||
		t.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

// fieldsOf returns the JSON fields of a value, with their types.
func fieldsOf(v reflect.Value) map[string]reflect.Type {
	v = reflect.Indirect(v)
	all := map[string]reflect.Type{}
	if v.Kind() == reflect.Map {
		for _, key := range v.MapKeys() {
			all[key.String()] = v.MapIndex(key).Elem().Type()
		}
		return all
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			for name, of := range fieldsOf(v.Field(i)) {
				all[name] = of
			}
		case name != "-" && f.IsExported():
			all[name] = f.Type
		}
	}
	return all
}

// TestDocumentListsTheFields: each field that a command writes as JSON is in the table of docs/reference/outboxctl.md,
// as docs/reference/stability.md promises.
func TestDocumentListsTheFields(t *testing.T) {
	text, err := os.ReadFile("testdata/document.md")
	if err != nil {
		t.Fatal(err)
	}
	p := page{t: t, rows: map[string]string{}, seen: map[reflect.Type]bool{}, written: map[string][]string{}}
	_, table, _ := strings.Cut(string(text), "| command | fields |")
	for line := range strings.Lines(table) {
		if cells := strings.SplitN(line, " | ", 2); len(cells) == 2 {
			p.rows[strings.TrimPrefix(cells[0], "| ")] = cells[1]
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
			p.lists(a.row, reflect.ValueOf(a.value))
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
