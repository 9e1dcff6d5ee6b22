// Package progress tracks the low-water mark of claims, so that a settled row is not scanned again at each claim.
//
// # Why a mark is needed
//
// Rows that were claimed or settled stay in the index until vacuum removes them, and vacuum cannot while an older
// transaction is open. Without a mark each claim scans all of them.
//
// # Why it may advance
//
// Rows are claimed in the order of positions: ready ones by id, those that fell due by time and id. A row becomes ready
// at a position beyond all earlier ones: ids come from a sequence, due times are never before the clock of the writing
// transaction. But a row is visible only when its transaction has committed, which may be long after the mark has
// passed.
//
// A transaction gets its number before it takes a position: the default of the id ensures that. Take a position M that
// was assigned before a statement began, or that the statement saw, and the next transaction number N that the
// statement read after it took its snapshot. All transactions with a position up to M have a number below N. (Not below
// the snapshot's xmax: that is the last completed transaction plus one, and some above it may be running.) A later scan
// whose snapshot has an xmin of N or more sees everything that all of them have committed. If it started at or below
// the mark and reached M, no row is left up to M, and M is the mark.
//
// # When it cannot
//
// A long transaction in any database of the server holds xmin back. After HoldFor, scans start at a second mark, an
// overlap behind the last claimed row. When the transaction has ended, one scan starts at the first mark again. It
// passes the rows that were claimed in the meantime, which is much less work than claiming them was.
//
// Once in FullInterval a full scan starts at the beginning, because a row that was locked when a scan passed it, and
// was released later, is behind all marks. Full scans take about 5% of the time, or 10% if every second one is slow. If
// the first row of the index is known from another query, they start there, and at the beginning for only about 1% of
// the time, for rows that committed late and were locked, or were changed manually.
//
// # In pages
//
// A scan that may pass many rows, because it starts at the beginning or where no scan has been, stops at the end of a
// page and continues there: it also passes rows that may not be claimed now, because their topic is paused. All its
// pages count as one scan: its snapshot is the first page's, and its number is read after the last page. Between two
// pages of a full scan, another scan starts at the mark, so that new rows do not wait for the end of the full one.
package progress
