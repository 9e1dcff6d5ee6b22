// Command projection keeps a table of what each customer ordered. It handles hundreds of Kafka messages in one
// transaction, and each message once. Start it several times: the processes share the partitions.
//
//	DATABASE_URL=postgres://me:secret@localhost/shop KAFKA_BROKERS=localhost:9092 go run ./projection
package main

import (
	"context"
	"encoding/json"
	"log"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/kafka"
	outboxmw "github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/schema"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger := watermill.NewSlogLogger(nil)
	brokers := strings.Split(os.Getenv("KAFKA_BROKERS"), ",")
	pool := must(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	db := must(outbox.FromPgx(pool, outbox.DBConfig{}, logger))
	must(schema.Migrate(ctx, db, schema.MigrateConfig{}))
	must(pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS totals
		(customer text PRIMARY KEY, orders bigint NOT NULL, amount bigint NOT NULL)`))

	orders := must(kafka.NewSubscriber(kafka.SubscriberConfig{
		SubscriberConfig: wmkafka.SubscriberConfig{
			Brokers: brokers, ConsumerGroup: "totals", Unmarshaler: wmkafka.DefaultMarshaler{},
			InitializeTopicDetails: &sarama.TopicDetail{NumPartitions: 8, ReplicationFactor: 1},
		},
		Concurrency: 1000, // the largest possible batch
	}, logger))
	for _, topic := range []string{"paid_orders", "dead_letters"} {
		must(0, orders.SubscribeInitialize(topic))
	}
	project := must(outboxmw.Batch(db, outboxmw.BatchConfig{Service: "totals"}, addUp, logger))
	router := must(message.NewRouter(message.RouterConfig{}, logger))
	router.AddConsumerHandler("totals", "paid_orders", orders, project)

	// The forwarder publishes the dead letters.
	broker := must(kafka.NewPublisher(kafka.PublisherConfig{Brokers: brokers}, logger))
	fwd := must(forwarder.New(db, broker, forwarder.Config{}, logger))
	must(0, outbox.Run(ctx, router, fwd))
}

type total struct{ orders, amount int64 }

// addUp runs in the transaction that also records the messages as handled.
func addUp(ctx context.Context, msgs []*message.Message) error {
	sums := map[string]*total{}
	for _, msg := range msgs {
		var order struct {
			Customer string
			Amount   int64
		}
		if err := json.Unmarshal(msg.Payload, &order); err != nil {
			return outbox.Poison(err) // the other messages of the batch are handled without this one
		}
		if sums[order.Customer] == nil {
			sums[order.Customer] = &total{}
		}
		sums[order.Customer].orders++
		sums[order.Customer].amount += order.Amount
	}
	var customers []string
	var counts, amounts []int64
	// Sorted, because two processes that lock the same rows in different orders would deadlock, and be retried.
	for _, customer := range slices.Sorted(maps.Keys(sums)) {
		customers = append(customers, customer)
		counts = append(counts, sums[customer].orders)
		amounts = append(amounts, sums[customer].amount)
	}
	tx, err := outbox.PgxTx(ctx)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO totals SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[])
		ON CONFLICT (customer) DO UPDATE
		SET orders = totals.orders + excluded.orders, amount = totals.amount + excluded.amount`, customers, counts, amounts)
	return err
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
