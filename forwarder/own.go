package forwarder

import (
	"fmt"
	"reflect"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// maxDecorators is how many decorators are looked behind.
const maxDecorators = 16

// refuseOwn returns ErrOwnPublisher if a publisher writes to the outbox that the forwarder reads: each message would go round
// for ever.
func refuseOwn(db *outbox.DB, cfg Config, pub message.Publisher) error {
	if (*core.DB)(db).Check() != nil {
		return nil // which newEngine reports
	}
	name := (*core.DB)(db).Tables().OutboxName()
	check := func(what string, pub message.Publisher) error {
		if own := writer(reflect.ValueOf(pub), maxDecorators); own != nil && (*core.Publisher)(own).DB().SameOutbox((*core.DB)(db)) {
			return fmt.Errorf("%w: %s writes to %s: give it the broker's publisher", ErrOwnPublisher, what, name)
		}
		return nil
	}
	if err := check("the publisher", pub); err != nil {
		return err
	}
	for topic, to := range cfg.Routes {
		if err := check(fmt.Sprintf("Config.Routes[%q]", topic), to); err != nil {
			return err
		}
	}
	return nil
}

var publisherType = reflect.TypeFor[message.Publisher]()

// writer finds the outbox's publisher behind decorators, which hold what they decorate in a field.
func writer(v reflect.Value, depth int) *outbox.Publisher {
	for v.Kind() == reflect.Interface && !v.IsNil() {
		v = v.Elem()
	}
	if v.Kind() == reflect.Pointer && v.Type() == reflect.TypeFor[*outbox.Publisher]() && !v.IsNil() {
		return (*outbox.Publisher)(v.UnsafePointer())
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if depth == 0 || v.Kind() != reflect.Struct {
		return nil
	}
	for i := range v.NumField() {
		if v.Type().Field(i).Type.Implements(publisherType) {
			if found := writer(v.Field(i), depth-1); found != nil {
				return found
			}
		}
	}
	return nil
}
