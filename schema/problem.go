package schema

import "strings"

// Problem is a difference between a database and what the code needs.
type Problem struct {
	Object  string // the object concerned, such as `index "outbox_ready"`
	Found   string // the fault
	Cure    string // what to do
	Warning bool   // it works, but not well or not for long
}

// String returns the problem and its cure as one line, or more if the cure is a statement.
func (p Problem) String() string { return p.Object + " " + p.Found + ": " + p.Cure }

// CheckError is returned by Check and lists all problems. errors.Is finds ErrSchemaChanged in it.
type CheckError struct {
	Problems []Problem
}

// Error lists all problems and their cures.
func (e *CheckError) Error() string {
	list := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		list[i] = p.String()
	}
	return ErrSchemaChanged.Error() + ": " + strings.Join(list, "\n")
}

// Unwrap returns ErrSchemaChanged.
func (e *CheckError) Unwrap() error { return ErrSchemaChanged }
