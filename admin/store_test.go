package admin

import (
	"strings"
	"testing"
)

// TestAnActWithoutAStatementIsRefused: the statement for messages of the outbox must not run with ids of another table.
func TestAnActWithoutAStatementIsRefused(t *testing.T) {
	a := &Admin{}
	for _, in := range []Table{Inbox, Queue} {
		s, err := a.store(in)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.change(t.Context(), &doing{Admin: a, verb: replay, result: &Result{}}, []State{Done}, []place{{Name: "1"}})
		if err == nil || !strings.Contains(err.Error(), `act "replay" has no statement for the `+in.String()) {
			t.Error(err)
		}
	}
}
