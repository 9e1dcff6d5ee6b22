package core

import (
	"context"
	"strings"
	"unsafe"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Tree is the call tree that a context belongs to: one delivery of a message by a Router, or everything outside
// Routers. An in-process Pub/Sub can pass a context on with a message, so values in a context may come from another
// call tree, which runs in another goroutine.
type Tree struct{ handler string }

type treeKey struct{}

// TreeOf returns the call tree of ctx, and a context that is marked with it.
//
// A Router puts the name of the handler into the context of each message that it delivers. The mark is a copy of that
// name that shadows it: ctx returns this copy until a Router delivers a message with it, to another handler or to the
// same one.
func TreeOf(ctx context.Context) (context.Context, Tree) {
	if t, ok := ctx.Value(treeKey{}).(Tree); ok && t.Has(ctx) {
		return ctx, t
	}
	t := Tree{message.HandlerNameFromCtx(ctx)}
	if t.handler != "" && handlerNameKey != nil {
		t.handler = strings.Clone(t.handler)
		ctx = context.WithValue(ctx, handlerNameKey, t.handler)
	}
	return context.WithValue(ctx, treeKey{}, t), t
}

// Has reports whether ctx belongs to the call tree.
func (t Tree) Has(ctx context.Context) bool {
	name := message.HandlerNameFromCtx(ctx)
	if name == "" || t.handler == "" {
		return name == t.handler
	}
	return unsafe.StringData(name) == unsafe.StringData(t.handler)
}

// handlerNameKey is Watermill's key for the name of the handler.
var handlerNameKey = func() (key any) {
	message.HandlerNameFromCtx(keyOf{context.Background(), &key})
	return key
}()

// keyOf records the key that Value is called with.
type keyOf struct {
	context.Context
	key *any
}

func (c keyOf) Value(key any) any {
	*c.key = key
	return nil
}
