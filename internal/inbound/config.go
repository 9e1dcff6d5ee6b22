package inbound

import (
	"fmt"
	"time"
)

// Fill gives a field that is not set its default.
func Fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Positive refuses a value of a field, "kafka: SubscriberConfig.MaxAhead" for one, that is not above 0.
func Positive[T int | time.Duration](field string, value T) error {
	if value <= 0 {
		return fmt.Errorf("%s is %v: it must be above 0", field, value)
	}
	return nil
}
