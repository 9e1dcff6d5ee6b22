// Package histories says whether a database keeps the histories of messages: what failed, and what operators did, in a
// column of the message's row. One that is at an older migration, or whose role has the grants of one, does not, and
// all else goes on as before.
package histories

import (
	"sync"
	"time"
)

// again is after how long a database is asked again, so that a process outlives a migration and a restored backup.
const again = time.Minute

// Keeper knows of one database. The zero value has not asked it. It is safe for concurrent use.
type Keeper struct {
	mu    sync.Mutex
	keeps bool
	asked time.Time
}

// Keeps says whether the database keeps histories. Who fails first asks it, for all; ask sets what it is given.
func (k *Keeper) Keeps(ask func(keeps *bool) error) (bool, error) {
	k.mu.Lock()
	keeps, asked := k.keeps, time.Since(k.asked) < again
	k.mu.Unlock()
	if asked {
		return keeps, nil
	}
	if err := ask(&keeps); err != nil {
		return false, err
	}
	k.mu.Lock()
	k.keeps, k.asked = keeps, time.Now()
	k.mu.Unlock()
	return keeps, nil
}
