package memory

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEveryStatementHasAnOperation: whoever adds a statement to the packages that run on the fake learns of the fake
// here.
func TestEveryStatementHasAnOperation(t *testing.T) {
	named := regexp.MustCompile(`sqltext\.([A-Z]\w*)`)
	names := func(file string) (list []string) {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range named.FindAllStringSubmatch(string(source), -1) {
			list = append(list, match[1])
		}
		return list
	}
	known := map[string]bool{
		"Tables": true, "ErrBadName": true, // no statements
		"InsertMarked": true, "StoreAnswerMarked": true, // only with a mark
		"Notify":       true,                        // to other processes
		"InboxHandled": true,                        // only over pgx, whose connection is asked before BEGIN
		"InboxKnown":   true, "KnownMessages": true, // only where a trigger keeps an insert from the table
		"ListClaimable": true, "ListExpired": true, "ListLeased": true, // where a constraint or trigger refuses updates
		"ClaimMessage": true, "ReapMessage": true, "ExpireMessage": true,
		"RestOfQueue": true, "LookAtQueues": true, // for a Group, whose databases a fleet opens by a DSN
		"WalkIndexes": true,                    // for those who count and list, which takes SQL
		"ParkSeen":    true, "AnyParked": true, // for subscriptions of package kafka, whose messages come from a broker
	}
	for _, name := range names("operations.go") {
		known[name] = true
	}
	for _, folder := range []string{
		"../core", "../../queue", "../../middleware", "../../idempotency", "../../outboxtest",
	} {
		files, err := filepath.Glob(folder + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatal(folder, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, name := range names(file) {
				if !known[name] {
					t.Errorf("%s uses sqltext.%s, for which there is no operation", file, name)
				}
			}
		}
	}
}
