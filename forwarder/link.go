package forwarder

import (
	"reflect"

	"github.com/ThreeDotsLabs/watermill/message"
)

// link is what a publisher has that can say whether it has a connection, as those of watermill-amqp can.
type link interface{ IsConnected() bool }

// linkOf finds the link of a publisher, also behind decorators that hold it in a field, and nil if it has none. One
// that holds two publishers is not looked behind: the link of one says nothing of the other.
func linkOf(pub message.Publisher) link {
	if l, ok := pub.(link); ok {
		return l
	}
	v := reflect.ValueOf(pub)
	for range maxDecorators {
		for v.Kind() == reflect.Interface && !v.IsNil() {
			v = v.Elem()
		}
		if v.Kind() != reflect.Pointer && v.Kind() != reflect.Struct || v.Kind() == reflect.Pointer && v.IsNil() {
			return nil
		}
		if v.Kind() == reflect.Pointer {
			if v.Type().Implements(reflect.TypeFor[link]()) {
				v = reflect.NewAt(v.Type().Elem(), v.UnsafePointer()) // it may be in a field that is not exported
				return v.Interface().(link)
			}
			v = v.Elem()
		}
		if v = onlyPublisherIn(v); !v.IsValid() {
			return nil
		}
	}
	return nil
}

// onlyPublisherIn returns the field of a struct that is a publisher, and an invalid value if there is none or another.
func onlyPublisherIn(v reflect.Value) (only reflect.Value) {
	if v.Kind() != reflect.Struct {
		return only
	}
	for i := range v.NumField() {
		if !v.Type().Field(i).Type.Implements(publisherType) {
			continue
		}
		if only.IsValid() {
			return reflect.Value{}
		}
		only = v.Field(i)
	}
	return only
}
