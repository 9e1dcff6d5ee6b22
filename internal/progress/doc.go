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
// A transaction that is open for long, in whatever database of the server, keeps xmin where it is, whatever it does.
// After HoldFor the scans start at a second mark, an overlap behind what was claimed. When that transaction has ended
// one scan starts at the first mark again. It walks what was claimed meanwhile, which is much less work than the claims
// were.
//
// Now and then, once a FullInterval, there is a full scan, from the beginning: a row that was locked when it was
// passed, by somebody who then gave it up, is behind all marks. What these take more than other scans is about a
// twentieth of the time, or a tenth if every second one is slow. Where somebody else has walked the index and knows
// what its first row is, they start there, and at the beginning for about a hundredth of the time: for a row that
// committed late, and was locked, or was changed by hand.
//
// # In pages
//
// A scan that may pass many rows, because it starts at the beginning or no scan was there before, stops at the end of a
// page and goes on there: rows that may not be claimed for now, as their topic is paused, are passed as well. All its
// pages count as one scan. Its rows had been handed out before the first page began, it sees what had committed by
// then, and its number is read behind the last page. Between two pages of a full scan there is one at the mark, so that
// what is new does not wait for its end.
package progress
