// Package amqp stands for watermill-amqp, whose publisher is known by the name of its type and the fields of its
// settings.
package amqp

import "github.com/ThreeDotsLabs/watermill/message"

// Publisher has the settings where the real one has them.
type Publisher struct {
	message.Publisher
	config Config
}

// Config is the part of the real one that matters.
type Config struct{ Publish PublishConfig }

// PublishConfig is the part of the real one that matters.
type PublishConfig struct{ ConfirmDelivery, Transactional bool }

// New returns a publisher that cannot publish.
func New(config Config) *Publisher { return &Publisher{config: config} }
