package docs

import (
	"cmp"
	"fmt"
	"go/ast"
	godoc "go/doc"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// printed is a text that the program prints: an error variable, or a log line.
type printed struct {
	dir, name, level  string // name of the variable, level of the line
	text, cause, cure string
	advice            []string
}

// errorsAndLogs lists the texts that lack their own cause and cure, with those from the code's comments.
func errorsAndLogs(t *testing.T) string {
	var b strings.Builder
	b.WriteString(`# Errors and log lines

Causes and cures of errors and log lines. Search for the beginning of a text, up to the first value in it. Texts that
already include the cure are not listed. Written by ` + "`make reference`" + ` from the code.

The fields of a log line show the topic, database or message; ` + "`err`" + ` is the error, which names the problem.
Errors are also in ` + "`last_error`" + ` of a message.
`)
	exported, others := allErrors(t)
	list := func(heading, about string, list []printed, only func(printed) bool) []printed {
		fmt.Fprintf(&b, "\n## %s\n\n", heading)
		if about != "" {
			b.WriteString(about + "\n\n")
		}
		var rows []string
		for _, p := range list {
			if !only(p) {
				continue
			}
			text := "`" + p.text + "`"
			if ast.IsExported(p.name) && p.name != "" {
				text += fmt.Sprintf(" (`%s.%s`)", importName(p.dir), p.name)
			}
			rows = append(rows, fmt.Sprintf("- %s: %s.\n", text, strings.Join(p.advice, ". ")))
		}
		slices.SortFunc(rows, func(a, b string) int { return cmp.Compare(strings.ToLower(a), strings.ToLower(b)) })
		b.WriteString(strings.Join(slices.Compact(rows), ""))
		return slices.DeleteFunc(list, only)
	}
	rest := addsToText(slices.DeleteFunc(logLines(t), func(p printed) bool {
		return p.level != "Error" && !strings.HasPrefix(p.text, "warning: ")
	}))
	rest = list("The database fails", "PostgreSQL does not respond in time, or the role lacks a grant: run "+
		"`outboxctl doctor` as that role;\n`outboxctl migrate roles` prints the grants. Until a retry works:", rest,
		func(p printed) bool { return p.cause == theDatabase })
	rest = list("Panics", "Bugs of the function in the text; the field `stack` shows where. Until the bug is fixed:",
		rest,
		func(p printed) bool { return isPanic(p.text) })
	all := func(printed) bool { return true }
	list("Other failures and warnings in the log", "", rest, all)
	list("Errors to compare with", "By `errors.Is`.", addsToText(exported), all)
	list("Other errors", "", addsToText(others), all)
	return b.String()
}

// theDatabase is a cause with its own section.
const theDatabase = "the database"

func isPanic(text string) bool {
	return strings.Contains(text, "panicked") || strings.HasPrefix(text, "panic in ")
}

// addsToText reduces the advice to the part that the text does not contain. It leaves out texts that include the cure,
// and those that need no action.
func addsToText(list []printed) (rest []printed) {
	for _, p := range list {
		p.cause, p.cure = strings.TrimSuffix(p.cause, "."), strings.TrimSuffix(p.cure, ".")
		if p.cure == "none is needed" || strings.Contains(p.text, p.cure) {
			continue
		}
		inGodoc := strings.HasPrefix(p.cause, "returned ")
		if p.cause != theDatabase && !isPanic(p.text) && !inGodoc && !strings.Contains(p.text, p.cause) {
			p.advice = append(p.advice, p.cause)
		}
		if p.cure != "fix the cause that the error names" {
			if len(p.advice) > 0 {
				p.cure = strings.ToUpper(p.cure[:1]) + p.cure[1:]
			}
			p.advice = append(p.advice, p.cure)
		}
		if len(p.advice) > 0 {
			rest = append(rest, p)
		}
	}
	return rest
}

// sorted orders texts and merges those that are printed in several places.
func sorted(list []printed) []printed {
	slices.SortStableFunc(list, func(a, b printed) int {
		return cmp.Or(cmp.Compare(a.dir, b.dir), cmp.Compare(a.text, b.text))
	})
	var merged []printed
	for _, p := range list {
		if n := len(merged) - 1; n >= 0 && merged[n].dir == p.dir && merged[n].text == p.text && merged[n].name == p.name {
			merged[n].cause, merged[n].cure = cmp.Or(merged[n].cause, p.cause), cmp.Or(merged[n].cure, p.cure)
			continue
		}
		merged = append(merged, p)
	}
	return merged
}

// allErrors finds error variables: those of public packages, including internal errors that they rename, and the rest.
func allErrors(t *testing.T) (exported, others []printed) {
	internal, aliased := map[string]printed{}, map[string]bool{}
	everyPackage(t, func(dir string, files []*ast.File) {
		public := slices.Contains(apiPackages(t), dir)
		declared(files, func(spec *ast.ValueSpec, doc *ast.CommentGroup) {
			for i, name := range spec.Names {
				if i >= len(spec.Values) || !regexp.MustCompile(`^[eE]rr[A-Z]`).MatchString(name.Name) {
					continue
				}
				p := printed{dir: dir, name: name.Name, text: literal(spec.Values[i])}
				var rest string
				if rest, p.cause, p.cure = causeAndCure(spec.Doc); spec.Doc == nil {
					rest, p.cause, p.cure = causeAndCure(doc)
				}
				rest = regexp.MustCompile(`^Err\w+ (is )?`).ReplaceAllString(rest, "")
				p.cause = cmp.Or(p.cause, new(godoc.Package).Synopsis(rest))
				alias, _ := spec.Values[i].(*ast.SelectorExpr)
				switch {
				case p.text == "" && alias == nil || strings.HasPrefix(p.text, "%"): // wraps other errors
				case public && name.IsExported():
					if alias != nil {
						p.level = embedded(alias.X) + "." + alias.Sel.Name // until its text is known
						aliased[p.level] = true
					}
					exported = append(exported, p)
				default:
					p.text = strings.TrimSuffix(p.text, ": %w")
					internal[path.Base(dir)+"."+name.Name] = p
				}
			}
		})
	})
	for i := range exported {
		p := &exported[i]
		if p.level != "" {
			p.text, p.level = internal[p.level].text, ""
		}
		p.fromText(1)
	}
	for name, p := range internal {
		if p.text != "" && !aliased[name] {
			p.fromText(1)
			others = append(others, p)
		}
	}
	exported, others = sorted(exported), sorted(others)
	complete(t, slices.Concat(exported, others))
	return exported, others
}

// fromText takes cause and cure from a text of the form `what happened: why: what to do`, which may have only its last
// two parts, unless a comment has them.
func (p *printed) fromText(least int) {
	parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(p.text, importName(p.dir)+": "), "warning: "), ": ")
	if len(parts) == 3 {
		p.cause = cmp.Or(p.cause, parts[1])
	}
	if len(parts) > least {
		p.cure = cmp.Or(p.cure, parts[len(parts)-1])
	}
}

// complete fails for a text without cause or cure, unless the text includes the cure.
func complete(t *testing.T, list []printed) {
	for _, p := range list {
		if p.cure == "" || p.cause == "" && !strings.Contains(p.text, p.cure) {
			t.Errorf("%s: %q: write // Cause: and // Cure: above it, or make it `what happened: why: what to do`", p.dir, p.text)
		}
	}
}

func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// causeAndCure splits a comment into lines that begin with "Cause: " and "Cure: ", and the rest.
func causeAndCure(doc *ast.CommentGroup) (rest, cause, cure string) {
	to := &rest
	for line := range strings.Lines(doc.Text()) {
		line = strings.TrimSpace(line)
		if after, ok := strings.CutPrefix(line, "Cause: "); ok {
			to, line = &cause, after
		} else if after, ok := strings.CutPrefix(line, "Cure: "); ok {
			to, line = &cure, after
		} else if line == "" {
			to = &rest
			continue
		}
		*to = strings.TrimSpace(*to + " " + line)
	}
	return rest, cause, cure
}

// literal returns the text of a string, of concatenated strings, or of an error made from one, or nothing.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		if left, right := literal(e.X), literal(e.Y); left != "" && right != "" {
			return left + right
		}
	case *ast.CallExpr:
		if f, ok := e.Fun.(*ast.SelectorExpr); ok && len(e.Args) > 0 && (f.Sel.Name == "New" || f.Sel.Name == "Errorf") {
			return literal(e.Args[0])
		}
	}
	return ""
}

// positions are the positions of all sources that sourcesOf has parsed.
var positions = token.NewFileSet()

// parsed parses one of them.
func parsed(t *testing.T, name string) *ast.File {
	file, err := parser.ParseFile(positions, name, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// TestTextsBeginLow: an error often ends another text, and a log line is searched for by its beginning.
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
