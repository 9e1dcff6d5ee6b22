package amqp_test

import (
	"fmt"
	"log"

	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"

	"github.com/millrace-go/watermill-outbox/amqp"
)

// The same Config works for watermill-amqp's subscriber.
func ExampleNewPublisher() {
	pub, err := amqp.NewPublisher(amqp.PublisherConfig{
		Config: wmamqp.NewDurableQueueConfig("amqp://guest:guest@localhost:5672/"),
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer pub.Close()
	fmt.Println("the first Publish connects")
	// Output: the first Publish connects
}
