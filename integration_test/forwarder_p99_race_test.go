//go:build race

package integration_test

import "time"

// p99Limit is three times what is promised: the race detector slows down everything by more than that.
const p99Limit = 3 * time.Second
