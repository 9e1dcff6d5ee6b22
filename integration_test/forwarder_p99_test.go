//go:build !race

package integration_test

import "time"

// p99Limit is how long a message of a healthy key may take at the 99th percentile.
const p99Limit = time.Second
