package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/kafka"
	"github.com/millrace-go/watermill-outbox/middleware"
)

const (
	arrivalTable   = "CREATE TABLE arrivals (n bigint GENERATED ALWAYS AS IDENTITY, id bigint NOT NULL)"
	arrivalInsert  = "INSERT INTO arrivals (id) VALUES ($1)"
	arrivalsInsert = "INSERT INTO arrivals (id) SELECT * FROM unnest($1::bigint[])"
	arrivalOrder   = `SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE id < before) FROM
 (SELECT id, lag(id) OVER (PARTITION BY id % $1 ORDER BY n) AS before FROM arrivals) a`
)

// inbound is a partition with messages for a Router.
type inbound struct {
	bench   *bench
	at      *kafkaBroker
	n       int
	byKey   bool // kafka.Subscriber instead of watermill-kafka's
	rtt     time.Duration
	work    time.Duration // additional time of the handler
	failing int           // one in this many keys always fails; 0 = none
	again   bool          // everything was handled before
	batch   bool          // middleware.Batch instead of Stack
}

// batched is the number of messages in flight for a batch.
const batched = 1000

// keys returns the number of distinct keys.
func (in inbound) keys() int {
	if in.batch {
		return batched * 5 // longer than any batch
	}
	return inboundKeys
}

var errOfKey = errors.New("messages of this key fail")

// fails reports whether message i has a failing key.
func (in inbound) fails(i int) bool { return in.failing > 0 && i%inboundKeys%in.failing == 7 }

func (in inbound) run(ctx context.Context) (measured, error) {
	d, err := in.bench.newDatabase(ctx)
	if err != nil {
		return measured{}, err
	}
	defer d.drop()
	if _, err := d.pool.Exec(ctx, arrivalTable); err != nil {
		return measured{}, err
	}
	handlers := 1
	if in.byKey {
		handlers = inFlight
	}
	far, closeFar, err := d.sized(ctx, handlers, in.rtt)
	if err != nil {
		return measured{}, err
	}
	defer closeFar()
	topic := fmt.Sprintf("inbound-%d-%d", time.Now().UnixNano(), brokerRuns.Add(1))
	if err := in.fill(topic); err != nil {
		return measured{}, err
	}
	defer in.at.remove(topic)
	want := 0
	for i := range in.n {
		if !in.fails(i) {
			want++
		}
	}
	took, err := in.handle(ctx, far, topic, topic, want)
	if err == nil && in.again {
		took, err = in.handle(ctx, far, topic, topic+"-again", want)
	}
	if err != nil {
		return measured{}, err
	}
	var rows, distinct, overtaken int
	if err := d.pool.QueryRow(ctx, arrivalOrder, in.keys()).Scan(&rows, &distinct, &overtaken); err != nil {
		return measured{}, err
	}
	if rows != want || distinct != want || overtaken > 0 {
		return measured{}, fmt.Errorf("%d rows of %d messages, %d overtaken, instead of %d", rows, distinct, overtaken, want)
	}
	return measured{value: perSecond(want, took)}, nil
}

// fill writes the messages to a topic of one partition.
func (in inbound) fill(topic string) error {
	detail := &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}
	if err := in.at.admin.CreateTopic(topic, detail, false); err != nil {
		return err
	}
	cfg := sarama.NewConfig()
	cfg.Producer.Return.Successes = true
	cfg.Metadata.Retry.Max = 20 // the topic is new
	producer, err := sarama.NewSyncProducer(in.at.kafka.Brokers(), cfg)
	if err != nil {
		return err
	}
	defer producer.Close()
	const chunk = 1000
	for first := 0; first < in.n; first += chunk {
		var batch []*sarama.ProducerMessage
		for i := first; i < min(first+chunk, in.n); i++ {
			batch = append(batch, &sarama.ProducerMessage{
				Topic: topic, Value: sarama.ByteEncoder(payload),
				Key:     sarama.StringEncoder("key-" + strconv.Itoa(i%in.keys())),
				Headers: []sarama.RecordHeader{{Key: []byte(wmkafka.UUIDHeaderKey), Value: []byte(uuidOf(i))}},
			})
		}
		if err := producer.SendMessages(batch); err != nil {
			return err
		}
	}
	return nil
}

func (in inbound) subscriber(group string) (message.Subscriber, error) {
	settings := kafka.DefaultSaramaSubscriberConfig()
	settings.Version = sarama.V2_8_0_0
	cfg := wmkafka.SubscriberConfig{
		Brokers: in.at.kafka.Brokers(), ConsumerGroup: group, Unmarshaler: wmkafka.DefaultMarshaler{},
		OverwriteSaramaConfig: settings,
	}
	if in.byKey {
		byKey := kafka.SubscriberConfig{SubscriberConfig: cfg, Concurrency: inFlight}
		if in.batch {
			byKey.Concurrency = batched
		}
		return kafka.NewSubscriber(byKey, nil)
	}
	return wmkafka.NewSubscriber(cfg, nil)
}

func insertArrivals(ctx context.Context, msgs []*message.Message) error {
	ids := make([]int64, len(msgs))
	for i, msg := range msgs {
		ids[i] = int64(indexOf(msg.UUID))
	}
	tx, err := outbox.PgxTx(ctx)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, arrivalsInsert, ids)
	return err
}

// handle returns how long a group took from the first call of the handler until want messages were committed.
func (in inbound) handle(ctx context.Context, d *database, topic, group string, want int) (time.Duration, error) {
	pub, err := outbox.NewPublisher(d.db, outbox.PublisherConfig{}, nil)
	if err != nil {
		return 0, err
	}
	stack, err := middleware.Stack(pub, middleware.StackConfig{Service: service}, nil)
	if err != nil {
		return 0, err
	}
	sub, err := in.subscriber(group)
	if err != nil {
		return 0, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		return 0, err
	}
	var begun atomic.Int64
	var committed atomic.Int64
	done := make(chan struct{})
	router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			begun.CompareAndSwap(0, time.Now().UnixNano())
			produced, err := next(msg)
			if err == nil && committed.Add(1) == int64(want) {
				close(done)
			}
			return produced, err
		}
	})
	project, err := middleware.Batch(d.db, middleware.BatchConfig{Service: service}, insertArrivals, nil)
	if err != nil {
		return 0, err
	}
	one := func(msg *message.Message) error {
		i := indexOf(msg.UUID)
		if in.fails(i) {
			return errOfKey
		}
		time.Sleep(in.work)
		tx, err := outbox.PgxTx(msg.Context())
		if err != nil {
			return err
		}
		_, err = tx.Exec(msg.Context(), arrivalInsert, i)
		return err
	}
	if in.batch {
		router.AddConsumerHandler(consumer, topic, sub, project)
	} else {
		router.AddMiddleware(stack...)
		router.AddConsumerHandler(consumer, topic, sub, one)
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	timeout := time.NewTimer(3 * time.Minute)
	defer timeout.Stop()
	var late error
	select {
	case <-done:
	case <-ctx.Done():
		late = ctx.Err()
	case <-timeout.C:
		late = fmt.Errorf("%d of %d messages were handled in three minutes", committed.Load(), want)
	}
	took := time.Duration(time.Now().UnixNano() - begun.Load())
	return took, errors.Join(late, router.Close(), <-ended)
}
