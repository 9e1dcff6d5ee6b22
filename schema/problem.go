package schema

import (
	"slices"
	"strings"
)

// Problem is a difference between a database and what the code needs.
type Problem struct {
	Object  string // the object concerned, such as `index "outbox_ready"`
	Found   string // the fault
	Cure    string // what to do
	Role    string // the role that lacks a privilege, if that is the fault
	Warning bool   // it works, but not well or not for long
}

// String returns the problem and its cure as one line, or more if the cure is a statement.
func (p Problem) String() string { return p.Object + " " + p.Found + ": " + p.Cure }

// schemaChanged returns the problems that are not warnings as an error, or nil.
func schemaChanged(problems []Problem) error {
	problems = slices.DeleteFunc(slices.Clone(problems), func(p Problem) bool { return p.Warning })
	if len(problems) == 0 {
		return nil
	}
	return &checkError{problems}
}

// checkError lists the problems that Check found.
type checkError struct{ problems []Problem }

// Error lists all problems and their cures.
func (e *checkError) Error() string {
	list := make([]string, len(e.problems))
	for i, p := range e.problems {
		list[i] = p.String()
	}
	return ErrSchemaChanged.Error() + ": " + strings.Join(list, "\n")
}

// Unwrap returns ErrSchemaChanged.
func (e *checkError) Unwrap() error { return ErrSchemaChanged }
