package cli

import (
	"os"

	"golang.org/x/term"
)

// WorldOf returns the World of a process with these files. It asks for confirmation if they are terminals.
func WorldOf(in, out, err *os.File, environ []string) World {
	return World{
		In: in, Out: out, Err: err, Environ: environ,
		Ask: term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(err.Fd())), Width: width(out), ErrWidth: width(err),
	}
}

// width returns a function for the current width of a terminal, 0 if the file is not one.
func width(file *os.File) func() int {
	return func() int {
		columns, _, err := term.GetSize(int(file.Fd()))
		if err != nil {
			return 0
		}
		return columns
	}
}
