// Package sqltext holds every statement that this module runs while it works, as text, and the names of its tables. The
// text of the migrations is in package migrations.
//
// A statement is one constant. The names of the tables are placeholders in braces, which Tables.Render replaces by
// quoted identifiers; nothing else of a statement is put together at run time. Each carries the comment on why it is
// shaped so.
package sqltext
