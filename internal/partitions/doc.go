// Package partitions reads the partitions of an outbox: those with a range of ids, and the default one for all other
// ids. Everything comes from the catalog, so sizes may change from one partition to the next.
package partitions
