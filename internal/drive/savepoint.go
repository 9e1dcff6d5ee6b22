package drive

import (
	"fmt"
	"strings"
	"sync/atomic"
)

// savepoints counts the savepoints of this process.
var savepoints atomic.Int64

// NextSavepoint returns a unique name, because code that joined a native transaction does not know which savepoints
// exist in it.
func NextSavepoint() string { return fmt.Sprintf("outbox_%d", savepoints.Add(1)) }

// userSavepoints tracks savepoints of user code. Messages captured after one must be undone with it, so they cannot
// wait for COMMIT.
type userSavepoints struct {
	open   int  // by Begin of a managedTx
	unseen bool // set by plain SQL, or otherwise unknown: the number of open ones cannot be known
}

func (u *userSavepoints) maybe() bool { return u.unseen || u.open > 0 }

func (u *userSavepoints) saw(query string) {
	const word = "savepoint"
	for i := 0; !u.unseen && i+len(word) <= len(query); i++ {
		u.unseen = query[i]|0x20 == word[0] && strings.EqualFold(query[i:i+len(word)], word)
	}
}
