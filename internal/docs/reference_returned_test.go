package docs

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// returned are the texts of errors that functions make, by what they say.
type returned struct {
	config    []printed // which field of a configuration is at fault
	situation []printed // what happened, of what
	step      []printed // what was being done when the error that follows happened
}

var (
	verb     = regexp.MustCompile(`%[-+#0-9.]*[a-zA-Z]`)
	ofConfig = regexp.MustCompile(`^(\w+: )?([\w.]*(Config|TxOptions)\.|%s\.)[A-Z%]|^%s (is|must|has)\b`)
	ofStep   = regexp.MustCompile(`^(\w+: |%[sw]: )?([^:]*): %w$`)
	ofOther  = regexp.MustCompile(`^%w \w`) // an error that is listed with its own text, and has a value here
	twoWords = regexp.MustCompile(`\pL{2,}.*[ .]\pL{2,}`)
)

// returnedErrors finds them: errors.New or fmt.Errorf in a function is all that it takes to be listed.
func returnedErrors(t *testing.T) (all returned) {
	everyPackage(t, func(dir string, files []*ast.File) {
		for _, file := range files {
			for _, decl := range file.Decls {
				if f, ok := decl.(*ast.FuncDecl); ok {
					ast.Inspect(f, func(n ast.Node) bool {
						if text := madeError(n); text != "" {
							all.add(printed{dir: dir, text: text})
						}
						return true
					})
				}
			}
		}
	})
	all.config, all.situation, all.step = sorted(all.config), sorted(all.situation), sorted(all.step)
	if len(all.config) < 90 || len(all.situation) < 140 || len(all.step) < 90 {
		t.Errorf("only %d, %d and %d errors of functions were found", len(all.config), len(all.situation), len(all.step))
	}
	return all
}

func (r *returned) add(p printed) {
	if step := ofStep.FindStringSubmatch(p.text); step != nil {
		if p.text = verb.ReplaceAllString(step[2], "…"); p.text != "…" {
			r.step = append(r.step, p)
		}
		return
	}
	if ofOther.MatchString(p.text) {
		return
	}
	to := &r.situation
	if ofConfig.MatchString(p.text) {
		to = &r.config
	}
	p.text = strings.TrimLeft(strings.TrimPrefix(p.text, "%w"), ":; ")
	if p.text = verb.ReplaceAllString(p.text, "…"); twoWords.MatchString(p.text) {
		*to = append(*to, p)
	}
}

// madeError is the text of a call of errors.New or fmt.Errorf, or of what outboxctl says, as far as it is constant.
func madeError(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return ""
	}
	if slices.Contains([]string{"usagef", "complain", "note"}, lastName(call.Fun)) {
		return constantPart(call.Args[0])
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || lastName(f.X) != "fmt" && lastName(f.X) != "errors" || f.Sel.Name != "New" && f.Sel.Name != "Errorf" {
		return ""
	}
	return constantPart(call.Args[0])
}

// constantPart is the text of strings that are added up, with a verb for each that is no constant.
func constantPart(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, _ := strconv.Unquote(e.Value)
			return text
		}
	case *ast.BinaryExpr:
		return constantPart(e.X) + constantPart(e.Y)
	}
	return "%s"
}

// write adds the sections of what is returned to the page.
func (r *returned) write(b *strings.Builder) {
	b.WriteString("\n## Errors of a configuration\n\n| package | text |\n|---|---|\n")
	for _, p := range r.config {
		fmt.Fprintf(b, "| %s | %s |\n", inPackage(p.dir), cell(p.text))
	}
	b.WriteString("\n## Errors of one case\n\n| package | text |\n|---|---|\n")
	for _, p := range r.situation {
		fmt.Fprintf(b, "| %s | %s |\n", inPackage(p.dir), cell(p.text))
	}
	b.WriteString("\n## What failed\n\n| package | before the error itself |\n|---|---|\n")
	of := byPackage(r.step)
	for _, dir := range slices.Sorted(maps.Keys(of)) {
		var texts []string
		for _, p := range of[dir] {
			texts = append(texts, cell(p.text))
		}
		fmt.Fprintf(b, "| %s | %s |\n", inPackage(dir), strings.Join(texts, ", "))
	}
}

func inPackage(dir string) string {
	return cmp.Or(strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(dir, "."), "cmd/"), "/cli"), "outbox")
}
