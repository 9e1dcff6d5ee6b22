package cli

import (
	"os"

	"golang.org/x/term"
)

// WorldOf is the world of a process that has these files. A user answers questions if they are a terminal.
func WorldOf(in, out, err *os.File, environ []string) World {
	return World{
		In: in, Out: out, Err: err, Environ: environ,
		Ask: term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(err.Fd())), Width: width(out), ErrWidth: width(err),
	}
}

// width returns how wide the terminal is now that a file is, 0 if it is none.
func width(file *os.File) func() int {
	return func() int {
		columns, _, err := term.GetSize(int(file.Fd()))
		if err != nil {
			return 0
		}
		return columns
	}
}
