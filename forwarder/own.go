package forwarder

import (
	"fmt"
	"reflect"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// maxDecorators is how many nested decorators are unwrapped.
const maxDecorators = 16

// refuseOwn returns ErrOwnPublisher if a publisher writes to the outbox that the forwarder reads: each message would
// loop forever.
func refuseOwn(db *outbox.DB, cfg Config, pub message.Publisher) error {
	if (*core.DB)(db).Check() != nil {
		return nil // newEngine reports it
	}
	name := (*core.DB)(db).Tables().OutboxName()
	check := func(what string, pub message.Publisher) error {
		if own := writer(reflect.ValueOf(pub), maxDecorators); own != nil &&
			(*core.Publisher)(own).DB().SameOutbox((*core.DB)(db)) {
			return fmt.Errorf("%w: %s writes to %s", ErrOwnPublisher, what, name)
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

// writer finds the outbox's publisher behind decorators.
func writer(v reflect.Value, depth int) (found *outbox.Publisher) {
	decorated(v, depth, func(v reflect.Value) bool {
		if v.Kind() == reflect.Pointer && v.Type() == reflect.TypeFor[*outbox.Publisher]() && !v.IsNil() {
			found = (*outbox.Publisher)(v.UnsafePointer())
		}
		return found != nil
	})
	return found
}

// decorated calls isIt for a publisher and for those that it decorates, found in its fields, until isIt returns true.
func decorated(v reflect.Value, depth int, isIt func(reflect.Value) bool) bool {
	for v.Kind() == reflect.Interface && !v.IsNil() {
		v = v.Elem()
	}
	if v.IsValid() && isIt(v) {
		return true
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if depth == 0 || v.Kind() != reflect.Struct {
		return false
	}
	for i := range v.NumField() {
		if v.Type().Field(i).Type.Implements(publisherType) && decorated(v.Field(i), depth-1, isIt) {
			return true
		}
	}
	return false
}
