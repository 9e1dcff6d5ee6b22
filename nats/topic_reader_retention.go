package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	natsgo "github.com/nats-io/nats.go"
)

// Retention returns max_age of the stream of a topic, which may have wildcards. It is unknown if the stream deletes
// consumed messages.
func (l *TopicReader) Retention(ctx context.Context, topic string) (retention time.Duration, known bool, err error) {
	js, err := l.connect(ctx)
	if err != nil {
		return 0, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	info, err := stream(ctx, js, topic)
	switch {
	case errors.Is(err, natsgo.ErrNoMatchingStream):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("nats: stream of topic %q: %w", topic, err)
	case info.Config.Retention != natsgo.LimitsPolicy:
		return 0, false, nil
	}
	return cmp.Or(info.Config.MaxAge, -1), true, nil
}
