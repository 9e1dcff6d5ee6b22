// Package cli implements the commands of outboxctl. It is exported only for its tests and promises nothing.
//
// Each noun has a file, a thin layer over package admin: flags become a Filter or an Action, and results become a table
// for people or JSON for scripts. Results go to standard output; questions, progress, hints, logs and errors to
// standard error.
//
// # Protection of the terminal and of secrets
//
// Anybody may have written the contents of a database. Text from it, and from arguments, reaches a terminal through
// clean, which escapes everything that is not printable; JSON goes through printable, which uses JSON's own escapes.
// Errors of a driver or of a broker may contain a password. Standard error goes through redactor, which hides known
// secrets and text that looks like one; so do errors that are results: the evidence of doctor, and the reason that
// check prints for unknown. The rest of standard output does not: "outbox" may be both a password and the name of a
// table.
//
// # Acts
//
// Every act first runs dry (Action.DryRun). Then it is confirmed: by an answer at a terminal, or by --yes. Run
// documents the exit codes.
package cli
