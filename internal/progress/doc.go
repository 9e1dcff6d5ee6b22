// Package progress knows how far the claims of messages have come, so that each row is passed once and not at each
// claim.
//
// # Why there is a mark
//
// Rows that were claimed or settled stay in the index until vacuum removes them, and while any transaction is open
// that is older vacuum cannot. Without a mark each claim walks all of them.
//
// # Why it may move
//
// Rows are claimed in the order of positions: ready ones by id, those that fell due by time and id. What a row becomes
// ready with is beyond all that was handed out before: ids come from a sequence, due times are never before the clock
// of the writing transaction. But a row is seen only when its transaction has committed, which may be long after the
// mark has passed.
//
// A transaction has its number before it takes a position: the default of the id sees to that. So of all transactions
// with a position up to some M that was handed out before a statement began, or that the statement saw, the number is
// below the next one, N, that the statement read after it took its snapshot. (Not below the snapshot's xmax: that is
// the last transaction that has ended, plus one, and some above it may be running.) A later scan whose snapshot has an
// xmin of N or more sees what all of them have committed. If it started at the mark or below it and came to M, there is
// nothing left up to M, and M is the mark.
//
// # When it cannot
//
// A long transaction in any database of the server holds xmin back. After HoldFor, scans start at a second mark, an
// overlap behind the last claimed row. When the transaction has ended, one scan starts at the first mark again. It
// passes the rows that were claimed meanwhile, which is much less work than claiming them was.
//
// Once in FullInterval a full scan starts at the beginning, because a row that was locked when a scan passed it, and
// then given back, is behind all marks. Full scans take about a twentieth of the time, or a tenth if every second one
// is slow. If the first row of the index is known from another walk, they start there, and at the beginning for only
// about a hundredth of the time, for rows that committed late and were locked, or were changed by hand.
//
// # In pages
//
// A scan that may pass many rows, because it starts at the beginning or where no scan has been, stops at the end of a
// page and continues there: it also passes rows that may not be claimed now, because their topic is paused. All its
// pages count as one scan: its snapshot is the first page's, and its number is read after the last page. Between two
// pages of a full scan, another scan starts at the mark, so that new rows do not wait for the end of the full one.
package progress
