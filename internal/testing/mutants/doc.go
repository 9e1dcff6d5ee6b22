// Package mutants breaks shipped code one rule at a time and requires that a test, or for the forwarder's engine the
// model, notices: a broken rule that nothing notices is a rule that no test protects. A mutant is an old text and a new
// one in a table, built with an overlay, so shipped code has no hooks.
package mutants
