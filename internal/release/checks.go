package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// depth says how much of the list is gone through.
type depth int

const (
	quickly   depth = iota // seconds
	whole                  // minutes
	withTests              // hours
)

// errNotChecked is wrapped by a check that could not look.
var errNotChecked = errors.New("not checked")

// A check returns what it saw, for the line of its result.
type check struct {
	what  string
	depth depth
	run   func(*rehearsal, context.Context) (saw string, err error)
}

var checks = []check{
	{"the version is newer than the last tag", quickly, (*rehearsal).newer},
	{"everything is committed", quickly, (*rehearsal).committed},
	{"our modules require each other at this version", quickly, (*rehearsal).required},
	{"CHANGELOG.md says what is new, and its links resolve", quickly, (*rehearsal).changelog},
	{"once tagged, no page says that nothing is released", quickly, (*rehearsal).pages},
	{"api.txt is what is exported", quickly, (*rehearsal).api},
	{"go mod tidy would change nothing", whole, (*rehearsal).tidy},
	{"the API is compatible, or the version says that it is not", whole, (*rehearsal).compatible},
	{"each module installs from a proxy, without replace directives", whole, (*rehearsal).install},
	{"the install commands of README and pages work", whole, (*rehearsal).installCommands},
	{"go install builds each command, which says its version", whole, (*rehearsal).commands},
	{"each command builds as it is tagged, with its own go.sum", whole, (*rehearsal).taggedCommands},
	{"each command is built for linux and darwin, amd64 and arm64", whole, (*rehearsal).programs},
	{"licences of all dependencies are known and allowed", whole, (*rehearsal).licences},
	{"bills of materials are written", whole, (*rehearsal).materials},
	{"examples build as modules of their own", whole, (*rehearsal).examples},
	{"an example runs", whole, (*rehearsal).exampleRuns},
	{"archives and their sums are written", whole, (*rehearsal).archives},
	{"no known weakness is reached", whole, (*rehearsal).weaknesses},
	{"lint finds nothing", withTests, makes("lint")},
	{"all tests pass", withTests, makes("test")},
	{"long tests pass", withTests, makes("test-long")},
	{"it works with everything in docs/reference/stability.md", withTests, makes("test-matrix")},
	{"no benchmark is below its floor", withTests, makes("bench")},
}

// check goes through the list, and says at the end which tags to make.
func (r *rehearsal) check(ctx context.Context, to io.Writer, depth depth) error {
	if depth > quickly {
		if err := os.RemoveAll(r.out); err != nil {
			return err
		}
	}
	missing := 0
	for _, c := range checks {
		began := time.Now()
		saw, err := "", fmt.Errorf("%w: takes hours: add ARGS=-tests", errNotChecked)
		if c.depth <= depth {
			saw, err = c.run(r, ctx)
		} else if c.depth < withTests || depth == quickly {
			continue
		}
		took := time.Since(began).Round(time.Second)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errNotChecked):
			fmt.Fprintf(to, "NOT CHECKED  %s: %s\n", c.what, strings.TrimPrefix(err.Error(), errNotChecked.Error()+": "))
		case err != nil:
			missing++
			fmt.Fprintf(to, "MISSING      %s (%s)\n%s\n", c.what, took, indented(err.Error()))
		default:
			fmt.Fprintf(to, "ok           %s (%s)%s\n", c.what, took, after(": ", saw))
		}
	}
	if missing > 0 {
		return fmt.Errorf("%s cannot be tagged: %d of the list missing", r.version, missing)
	}
	if depth == quickly {
		return nil
	}
	tags, err := tagsOf(ctx, r.clone, r.version)
	if err != nil {
		return err
	}
	fmt.Fprintf(to, "made for the release: .cache/release/%s\n", r.version)
	fmt.Fprintf(to, "make release-tag %s makes these tags here and pushes nothing:\n", r.version)
	for _, tag := range tags {
		fmt.Fprintf(to, "  %s\n", tag)
	}
	return nil
}

func after(separator, text string) string {
	if text == "" {
		return ""
	}
	return separator + text
}

func indented(text string) string {
	const by = "             "
	return by + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by)
}

// makes is a check that a target of the Makefile holds.
func makes(target string) func(*rehearsal, context.Context) (string, error) {
	return func(r *rehearsal, ctx context.Context) (string, error) {
		_, err := output(ctx, r.root, nil, "make", "--no-print-directory", target)
		return "", err
	}
}
