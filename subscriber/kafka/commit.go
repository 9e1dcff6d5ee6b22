package kafka

import (
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// commitInterval is sarama's default for where it commits by itself.
const commitInterval = time.Second

// commits commits what is marked in a session where sarama does not, as Consumer.Offsets.AutoCommit.Enable is false. It
// has a goroutine of its own, because Commit waits while the group is rebalanced. It is safe for concurrent use.
type commits struct {
	sess    sarama.ConsumerGroupSession
	over    chan struct{}
	running sync.WaitGroup
}

func newCommits(sess sarama.ConsumerGroupSession) *commits {
	c := &commits{sess: sess, over: make(chan struct{})}
	c.running.Go(func() {
		ticker := time.NewTicker(commitInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				sess.Commit() // sends nothing if nothing was marked
			case <-c.over:
				return
			}
		}
	})
	return c
}

// now is for a partition that is given away: sarama forgets its marks then.
func (c *commits) now() {
	if c != nil {
		c.sess.Commit()
	}
}

// stop commits a last time.
func (c *commits) stop() {
	close(c.over)
	c.running.Wait()
	c.sess.Commit()
}
