// Package cli is the commands of outboxctl. It is exported for its tests alone and promises nothing.
//
// Each noun has a file, thin over package admin: flags become a Filter or an Act, and what comes back a table for
// people or JSON for scripts. Results go to standard output; questions, progress, hints, logs and errors to standard
// error.
//
// # What protects the terminal and the secrets
//
// What a database holds may have been written by anybody. Text from it, and from arguments, reaches a terminal through
// clean, which escapes all that is not printable; JSON through printable, which does so by JSON's own means. Errors of
// a driver or of a broker may carry a password. Standard error goes through redactor, which hides those that are known,
// and what looks like one; so are the errors that are results: the evidence of doctor, and why check knows nothing. The
// rest of standard output is not: there "outbox" may be both a password and the name of a table.
//
// # Acts
//
// Every act is tried first (Act.DryRun). Then it is confirmed: by an answer at a terminal, else by
// --yes. The exit code says what came of it; see Run.
package cli
