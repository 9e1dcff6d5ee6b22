package forwarder

import (
	"reflect"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

const unconfirmedWarning = "warning: this publisher of watermill-amqp does not wait for RabbitMQ: messages that the " +
	"broker never gets are marked " +
	"published: set Publish.ConfirmDelivery in its Config"

const unroutableWarning = "warning: watermill-amqp does not report messages that RabbitMQ cannot route: " +
	"they are marked published, and are in no queue: " +
	"declare queues and bindings before the first publish, or give the exchange an alternate exchange"

// warnOfUnconfirmed warns of publishers that report success for what no broker may have. They are known by the name of
// their type, also behind decorators that hold them in a field, so that their module is not needed.
func warnOfUnconfirmed(logger watermill.LoggerAdapter, all []message.Publisher) {
	for _, pub := range all {
		decorated(reflect.ValueOf(pub), maxDecorators, func(v reflect.Value) bool {
			if v.Kind() != reflect.Pointer || v.IsNil() || !isAMQP(v.Type().Elem()) {
				return false
			}
			publisher := v.Type().String()
			if !amqpConfirms(v.Elem()) {
				// Cause: use package amqp instead.
				logger.Info(unconfirmedWarning, watermill.LogFields{"publisher": publisher})
			}
			// Cause: use package amqp instead.
			logger.Info(unroutableWarning, watermill.LogFields{"publisher": publisher})
			return true
		})
	}
}

// isAMQP recognises the publisher of any release of watermill-amqp, also one that is vendored.
func isAMQP(t reflect.Type) bool {
	return t.Name() == "Publisher" && strings.Contains(t.PkgPath(), "watermill-amqp") && t.Kind() == reflect.Struct
}

// amqpConfirms says whether its Publish waits for the broker: with confirms, or in a transaction of AMQP. A release
// that keeps its settings elsewhere counts as one that does not.
func amqpConfirms(v reflect.Value) bool {
	for _, name := range []string{"config", "Publish"} {
		if v = v.FieldByName(name); v.Kind() != reflect.Struct {
			return false
		}
	}
	for _, name := range []string{"ConfirmDelivery", "Transactional"} {
		if f := v.FieldByName(name); f.Kind() == reflect.Bool && f.Bool() {
			return true
		}
	}
	return false
}

// samePublisher says whether two are the same value, as far as that can be compared.
func samePublisher(a, b message.Publisher) bool {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	return va.IsValid() && vb.IsValid() && va.Comparable() && vb.Comparable() && a == b
}
