// Package partitions reads which partitions an outbox has: those with a range of ids, and the default one for the ids
// that have no other. Everything comes from the catalog, so sizes may change from one partition to the next.
package partitions
