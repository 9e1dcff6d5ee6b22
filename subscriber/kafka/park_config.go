package kafka

import (
	"errors"
	"fmt"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// maxTopic is Kafka's limit for the name of a topic.
const maxTopic = 249

// ParkConfig says where keys that fail for long are parked, as the package comment explains. The zero value parks
// nothing.
type ParkConfig struct {
	// DB is the application's handle, that of the middlewares. What is parked has tables of its own beside it, named after
	// its outbox: outbox_parked and its companions. A subscription creates them when it begins, as schema.Migrate does.
	// No message is delivered before they could be read: an error line tells of that.
	// Default: none, and a key that fails for long pauses its partition.
	DB *outbox.DB
	// After is how long a message fails before its key is parked if its partition is paused; default 10 s. If it is not
	// paused, it is ten times that. A handler that returns outbox.RetryAfter counts as one that fails, and the wait is
	// kept.
	After time.Duration
	// MaxKeys is how many keys, and messages without a key, a subscription parks; default 100. Beyond that partitions
	// pause: when everything fails there is nothing to gain by copying a topic into Postgres.
	MaxKeys int
}

func (c *ParkConfig) setDefaults() {
	if c.DB != nil {
		inbound.Fill(&c.After, 10*time.Second)
		inbound.Fill(&c.MaxKeys, 100)
	}
}

func (c ParkConfig) validate(group string) error {
	if c.DB == nil {
		if c != (ParkConfig{}) {
			return errors.New("kafka: SubscriberConfig.Park.DB is nil: name the handle of the middlewares, " +
				"or leave the other fields of Park empty")
		}
		return nil
	}
	errs := []error{
		inbound.Positive("kafka: SubscriberConfig.Park.After", c.After),
		inbound.Positive("kafka: SubscriberConfig.Park.MaxKeys", c.MaxKeys),
	}
	if limit := outbox.MaxTopicBytes - maxTopic - 1; len(group) > limit || !text.Storable(group) {
		errs = append(errs, fmt.Errorf("kafka: SubscriberConfig.ConsumerGroup must be UTF-8 without NUL, "+
			"of at most %d bytes, with Park", limit))
	}
	if _, err := c.handle(); err != nil {
		errs = append(errs, fmt.Errorf("kafka: SubscriberConfig.Park.DB: %w", err))
	}
	return errors.Join(errs...)
}

// handle is that of the park's own tables: in the application's outbox a forwarder would publish what is parked.
func (c ParkConfig) handle() (*outbox.DB, error) {
	db, err := (*core.DB)(c.DB).Park()
	return (*outbox.DB)(db), err
}
