// Package mutants breaks shipped code one rule at a time and requires that a test, or for the forwarder's engine the
// model, notices: a rule whose breakage goes unnoticed is protected by no test. A mutant is an old text and a new one
// in a table, built with an overlay, so shipped code has no hooks.
package mutants
