// Package mutants breaks shipped code one rule at a time, and has the model find it: what no schedule finds, no test
// protects. A mutant is an old line and a new one in a table, built with an overlay, so shipped code has no hooks.
package mutants
