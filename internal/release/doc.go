// Release rehearses a release, and makes its tags.
//
//	release check [-quick | -tests] v0.1.0    all but the tags; make release-check v0.1.0
//	release tag v0.1.0                        commits the changelog and tags, pushes nothing; make release-tag v0.1.0
//
// The rehearsal makes the tags in a clone and serves what they hold as a module proxy would, from files. From there it
// installs what users install: no replace directive of this repository helps. What is made for a release stays in
// .cache/release/VERSION: the programs, their licences, their bills of materials and the sums of all of these.
//
// Each line of its output begins with ok, MISSING or NOT CHECKED. Only what was seen is ok; what needs a service that
// cannot be reached is not checked. The exit status is 1 if anything is missing.
package main
