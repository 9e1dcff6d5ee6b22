package redis_test

import (
	"fmt"
	"io"

	"github.com/millrace-go/watermill-outbox/redis"
)

// The connection was lost: the topic is paused, and no attempt is counted.
func ExampleClassify() {
	fmt.Println(redis.Classify(fmt.Errorf("cannot xadd message: %w", io.EOF)))
	// Output: unavailable
}
