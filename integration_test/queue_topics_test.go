package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/queue"
)

// TestTopicsOfOthersAreLeftAlone: services with other limits share the table. Whoever handles one topic ends no message
// of another, and calls no OnDead for it.
func TestTopicsOfOthersAreLeftAlone(t *testing.T) {
	handlers := map[string]queue.Handler{"mine": {Handle: func(context.Context, *queue.Message) error { return nil }}}
	for name, start := range map[string]func(t *testing.T, h handle, s *queue.Store){
		"dispatcher": func(t *testing.T, _ handle, s *queue.Store) {
			cfg := quickDispatcher(handlers)
			cfg.LeaseTTL = time.Second
			dispatching(t, s, cfg)
		},
		"dispatcher with OnDead": func(t *testing.T, h handle, s *queue.Store) {
			cfg := quickDispatcher(handlers)
			cfg.LeaseTTL = time.Second
			cfg.OnDead = func(ctx context.Context, msg *queue.Message, err error) error {
				return h.execTx(ctx, "insert into graves values ($1, $2)", msg.Topic, err.Error())
			}
			dispatching(t, s, cfg)
		},
		"subscriber": func(t *testing.T, _ handle, s *queue.Store) {
			cfg := quickSubscriber()
			cfg.LeaseTTL = time.Second
			sub := subscriberOn(t, s, cfg)
			for _, topic := range []string{"idle", "mine"} { // both share the maintenance that the first one starts
				_, err := sub.Subscribe(t.Context(), topic)
				require.NoError(t, err)
			}
		},
		"claims": func(t *testing.T, _ handle, s *queue.Store) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			t.Cleanup(func() { cancel(); <-ended })
			go func() {
				defer close(ended)
				for ctx.Err() == nil { // the first topic's calls must not keep reaping from the second
					for _, topic := range []string{"idle", "mine"} {
						_, _ = s.Claim(ctx, queue.Claim{
							Owner: queue.NewOwner(), LeaseTTL: time.Minute, Limit: 10, Topics: []string{topic},
						})
					}
				}
			}()
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := onPgx(t)
			h.exec(t, "create table graves (topic text, cause text)")
			cfg := quickStore()
			cfg.MaxAttempts = 2
			s := storeOn(t, h, cfg)
			h.exec(t, `insert into inbox_queue (source, message_id, topic, state, attempts, owner, locked_until, expires_at)
				select topic, kind, topic, 'processing', case kind when 'late' then 0 else 1 end,
				       case kind when 'killed' then gen_random_uuid() end,
				       case kind when 'killed' then now() - interval '1 minute' end,
				       case kind when 'late' then now() - interval '1 minute' end
				  from unnest(array['mine', 'theirs']) topic, unnest(array['late', 'killed']) kind`)
			h.exec(t, `insert into inbox_queue (source, message_id, topic, state, attempts, due_at)
				values ('theirs', 'failed', 'theirs', 'processing', 5, now() - interval '1 hour')`)
			dead := func(topic string) int {
				return h.count(t, "select count(*) from inbox_queue where state = 'dead' and topic = $1", topic)
			}
			start(t, h, s)
			eventually(t, func() bool { return dead("mine") == 2 }, "those of its own topic are dead")
			if name == "dispatcher" || name == "dispatcher with OnDead" {
				msg := untilMessage(t, s, queue.ID{Source: "theirs", MessageID: "failed"}, "was looked at",
					func(msg queue.Message) bool { return msg.LastError != "" })
				assert.Equal(t, "no handler for the topic", msg.LastError)
			}
			assert.Zero(t, dead("theirs"))
			assert.Equal(t, 1, h.count(t, "select count(*) from inbox_queue where topic = 'theirs' and owner is not null"))
			assert.Zero(t, h.count(t, "select count(*) from graves where topic = 'theirs'"))
			if name == "dispatcher with OnDead" {
				assert.Equal(t, 2, h.count(t, "select count(*) from graves"))
				assert.Equal(t, queue.State("dead"), got(t, s, queue.ID{Source: "mine", MessageID: "killed"}).State)
				assert.Contains(t, got(t, s, queue.ID{Source: "mine", MessageID: "killed"}).LastError, "lease expired")
			}
			_, err := s.ReapExpired(t.Context())
			require.NoError(t, err)
			assert.Equal(t, 2, dead("theirs"), "ReapExpired is for all topics")
		})
	}
}
