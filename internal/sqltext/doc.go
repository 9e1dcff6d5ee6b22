// Package sqltext holds every statement that this module runs, except migrations, as text, and the names of its tables.
// The text of the migrations is in package migrations.
//
// A statement is one constant. The names of the tables are placeholders in braces, which Tables.Render replaces by
// quoted identifiers; nothing else is assembled at run time. Comments explain why a statement is written as it is.
package sqltext
