package inbound

import (
	"fmt"
	"time"
)

// Fill sets a field to its default if it is zero.
func Fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Positive returns an error if the value of a field, such as "kafka: SubscriberConfig.MaxAhead", is not above 0.
func Positive[T int | time.Duration](field string, value T) error {
	if value <= 0 {
		return fmt.Errorf("%s is %v: it must be above 0", field, value)
	}
	return nil
}
