package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestTopicThatNobodyTakes: a topic that is mistyped in Config.Topics would wait in silence.
func TestTopicThatNobodyTakes(t *testing.T) {
	h := onPgx(t)
	for _, topic := range []string{"orders", "invoices", "young"} {
		h.publish(t, topic, "K", topic+"-1", topic+"-2")
	}
	h.exec(t, "update outbox set created_at = now() - interval '5 minutes' where topic <> 'young'")
	w := startForwarder(t, h, withTopics("", "invoices"))
	cfg := withTopics("", "ordres")
	cfg.CleanInterval = 20 * time.Millisecond
	begun := time.Now()
	w.join(t, h, cfg)
	eventually(t, func() bool { return w.log.count("no forwarder publishes this topic") > 0 }, "it says so")
	w.publish(t, "ordres", "", "taken")
	w.arrives(t, "taken", "invoices-2")
	assert.LessOrEqual(t, w.log.count("no forwarder publishes this topic"), 1+int(time.Since(begun)/time.Minute),
		"once a minute: %v", *w.log.lines)
	assert.Zero(t,
		h.count(t, "select count(*) from outbox where topic in ('orders', 'young') and published_at is not null"))
}
