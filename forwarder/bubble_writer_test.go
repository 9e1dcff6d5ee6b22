package forwarder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/testing/modeldb"
)

var insertStatement = sqltext.Tables{}.WithDefaults().Render(sqltext.InsertMessages)

func (t *bubbleTx) insert(ctx context.Context, args []any) (int64, error) {
	uuids, topics, keys := args[0].([]string), args[1].([]string), args[2].([]string)
	_, err := t.pool.ask(ctx, "insert", func(ctx context.Context) (bubbleAnswer, error) {
		if ctx == context.Background() {
			return bubbleAnswer{}, nil // a late statement finds the transaction ended
		}
		return t.pool.server.run(ctx, func(s *bubbleServer, _ []any) (a bubbleAnswer, _ bool) {
			if t.tx == nil {
				t.tx = s.db.Begin()
			}
			for i := range uuids {
				t.tx.Insert(modeldb.Row{UUID: uuids[i], Topic: topics[i], Key: keys[i], Lane: laneOf(keys[i])})
			}
			return a, false
		}, nil)
	})
	return int64(len(uuids)), err
}

func (t *bubbleTx) Marked() bool               { return false }
func (t *bubbleTx) Hints() bool                { return false }
func (t *bubbleTx) Ended(context.Context) bool { return false }

// publishUnanswered is a program in the first forwarder's process that publishes in transactions whose commits get no
// response. It does what ErrCommitUnknown advises.
func (b *bubble) publishUnanswered() {
	const key = "key-of-the-program"
	f := b.forwarders[0]
	f.pool.setUnanswered("commit of a writer")
	pub, err := outbox.NewPublisher(f.db, outbox.PublisherConfig{
		Key: func(string, *message.Message) (string, error) { return key, nil },
	}, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	for n := 1; n <= bubbleMessages; n++ {
		msg := message.NewMessage(fmt.Sprint(key, "/", n), nil)
		for !b.server.has(msg.UUID) {
			ctx, cancel := context.WithTimeout(b.ctx, queryTimeout)
			err := outbox.InTx(ctx, f.db, func(ctx context.Context) error {
				return pub.PublishContext(ctx, "topic-0", msg)
			})
			cancel()
			if !errors.Is(err, outbox.ErrCommitUnknown) && b.fault.kind == 0 {
				b.t.Error("InTx:", err)
			}
			time.Sleep(tooLate + time.Second) // from now on the result is final
		}
		if b.fault.kind == 0 && b.server.pending() > 0 {
			b.t.Errorf("%s was committed, but is pending after %s", msg.UUID, tooLate)
		}
	}
}
