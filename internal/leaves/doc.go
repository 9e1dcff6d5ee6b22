// Package leaves reads which partitions an outbox has: the leaves, each with a range of ids, and the default, which
// takes the rows that have no leaf. Everything comes from the catalog, so sizes may change from one leaf to the next.
package leaves
