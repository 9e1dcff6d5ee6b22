package queue

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

var errRaised = &pgconn.PgError{Code: "P0001", Routine: "exec_stmt_raise", Message: "refused"}

// refusingStore returns a Store whose database lists rows of a topic, or fails to.
func refusingStore(t *testing.T, listed int, failed error) *Store {
	t.Helper()
	s := fakeStore(t, func(query string) (rows [][]any, err error) {
		if !strings.Contains(query, "random()") {
			return nil, nil
		}
		for i := range listed {
			rows = append(rows, []any{int64(i + 1), "s", fmt.Sprint("listed-", i), "listed", false, 0})
		}
		return rows, failed
	})
	s.triggersAt = time.Now().Add(time.Hour)
	return s
}

// refuseAll records rows of a topic as refused long enough ago to be due again.
func refuseAll(s *Store, topic string, n int, since time.Duration) {
	for range n {
		id := int64(len(s.refusals.rows) + 1)
		row := queueRow{ID: ID{Source: topic, MessageID: fmt.Sprint(id)}, id: id, topic: topic}
		s.refusals.add(claimRows, row, time.Now().Add(-since), "P0001")
	}
}

func succeeds() error { return nil }

// TestRefusedRowsOfOthersDelayNone: refused rows that a claim cannot take do not delay retries of rows that it can
// take.
func TestRefusedRowsOfOthersDelayNone(t *testing.T) {
	s := refusingStore(t, 0, nil)
	refuseAll(s, "of nobody", 2*maxDue, time.Minute)
	refuseAll(s, "full", 2*maxDue, time.Minute)
	refuseAll(s, "ours", 1, 30*time.Second)
	tried := 0
	_, err := s.choose(t.Context(), choice{
		what: claimRows, list: "random()", topics: []string{"full", "ours"}, many: succeeds,
		fits: func(row queueRow) bool { return row.topic != "full" },
		one: func(row queueRow) (bool, error) {
			tried++
			return false, errRaised
		},
	})
	if err != nil || tried != 1 {
		t.Errorf("tried %d rows, error %v", tried, err)
	}
}

// TestCuredRowsReturnImmediately: once the first refused row was changed, the others are retried without waiting.
func TestCuredRowsReturnImmediately(t *testing.T) {
	s := refusingStore(t, 0, nil)
	refuseAll(s, "orders", 1, time.Minute)
	refuseAll(s, "orders", 899, 0) // due in a second
	changed, calls := 0, 0
	for again := true; again; calls++ {
		var err error
		again, err = s.choose(t.Context(), choice{
			what: claimRows, list: "random()", many: succeeds,
			one: func(queueRow) (bool, error) {
				changed++
				return true, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if changed != 900 || calls > 12 {
		t.Errorf("%d rows changed in %d calls", changed, calls)
	}
}

// TestErrorOfAllRows: if a statement fails for every row, the statement or the table is at fault.
func TestErrorOfAllRows(t *testing.T) {
	for name, refused := range map[string]int{"few refused": 0, "many refused": maxLeftOut + 1} {
		s := refusingStore(t, maxAlone, nil)
		refuseAll(s, "orders", refused, 0)
		tried := 0
		again, err := s.choose(t.Context(), choice{
			what: claimRows, list: "random()", many: func() error { return errRaised },
			one: func(queueRow) (bool, error) {
				tried++
				return false, errRaised
			},
		})
		if again || !errors.Is(err, errRaised) || tried > 20 {
			t.Errorf("%s: tried %d rows, again: %t, error %v", name, tried, again, err)
		}
	}
}

// TestOneRowOfManyChanges: if one row can be changed, the same error is the fault of the other rows.
func TestOneRowOfManyChanges(t *testing.T) {
	s := refusingStore(t, maxAlone, nil)
	tried := 0
	again, err := s.choose(t.Context(), choice{
		what: claimRows, list: "random()", many: func() error { return errRaised },
		one: func(queueRow) (bool, error) {
			if tried++; tried == 10 {
				return true, nil
			}
			return false, errRaised
		},
	})
	if !again || err != nil || tried != maxAlone {
		t.Errorf("tried %d rows, again: %t, error %v", tried, again, err)
	}
}

// TestFailedListOfUnchangedRows: a statement that succeeded counts even if the list of unchanged rows cannot be read.
func TestFailedListOfUnchangedRows(t *testing.T) {
	s := refusingStore(t, 0, errors.New("timeout"))
	s.triggers = true
	if _, err := s.choose(t.Context(), choice{what: reapRows, list: "random()", many: succeeds}); err != nil {
		t.Errorf("the statement succeeded, and the call failed: %v", err)
	}
}

// TestClaimThatIsRefusedAllRows: such a claim counts as empty; otherwise a Drain would never end.
func TestClaimThatIsRefusedAllRows(t *testing.T) {
	for listed, empty := range []bool{true, false} {
		s := refusingStore(t, listed, nil)
		refuseAll(s, "orders", maxLeftOut+1, 0)
		c := Claim{Owner: NewOwner(), LeaseTTL: time.Minute, Limit: 10}
		found, err := s.claim(t.Context(), c, claimRequest{suspects: true}, newClaimCursor())
		if err != nil || found.empty != empty {
			t.Errorf("%d rows besides the refused ones: empty: %t, error %v", listed, found.empty, err)
		}
	}
}

// TestReapingEndsWithManyRefused: if no statement for many messages succeeds, reaping does not assume that more are
// left.
func TestReapingEndsWithManyRefused(t *testing.T) {
	queries := 0
	s := fakeStore(t, func(string) ([][]any, error) {
		if queries++; queries > 100 {
			return nil, errors.New("it never ends")
		}
		return nil, nil
	})
	refuseAll(s, "orders", maxLeftOut+1, 0)
	if _, err := s.ReapExpired(t.Context()); err != nil {
		t.Error(err)
	}
}
