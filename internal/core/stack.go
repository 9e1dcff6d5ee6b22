package core

import (
	"reflect"
	"runtime"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// errElsewhere is for an InTx that another goroutine calls with the context of a transaction. In-process Pub/Subs pass
// contexts on, so it may be a loop that handles messages, which would join the transaction of the publishing code, and
// lose its work with that one's rollback.
var errElsewhere = text.Advise(ErrTxBusy, "outbox: InTx was called in another goroutine than the function whose "+
	"transaction is in the context: "+
	"if the context came with a message, pass outbox.OutsideTx(msg.Context()); else call it in the function's goroutine")

// inTxFrame ends the name of InTx in a stack.
const inTxFrame = "/internal/core.InTx"

// frames shows what has called its caller, from the inside out, until see returns false.
func frames(see func(runtime.Frame) bool) {
	var pcs [64]uintptr
	for skip := 3; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		if n == 0 {
			return
		}
		for all := runtime.CallersFrames(pcs[:n]); ; {
			f, more := all.Next()
			if !see(f) {
				return
			}
			if !more {
				break
			}
		}
		if n < len(pcs) {
			return
		}
	}
}

// here says whether this goroutine is in an InTx.
func here() (found bool) {
	frames(func(f runtime.Frame) bool {
		found = strings.HasSuffix(f.Function, inTxFrame)
		return !found
	})
	return found
}

// unsafeWithin are Watermill's middlewares that do harm within a transaction, by the end of the name of their file.
var unsafeWithin = map[string]string{
	"/message/router/middleware/retry.go":         "Retry",
	"/message/router/middleware/poison.go":        "PoisonQueue",
	"/message/router/middleware/ignore_errors.go": "IgnoreErrors",
	"/message/router/middleware/deduplicator.go":  "Deduplicator",
	"/message/router/middleware/duplicator.go":    "Duplicator",
}

func unsafeFile(file string) string {
	if i := strings.LastIndex(file, "/message/router/middleware/"); i >= 0 {
		return unsafeWithin[file[i:]]
	}
	return ""
}

// UnsafeBetween returns the name of a middleware of Watermill's that is between the InTx around the caller and the
// caller, and does harm there. Known is false if the caller is in no InTx, but in another goroutine.
func UnsafeBetween() (name string, known bool) {
	frames(func(f runtime.Frame) bool {
		known = strings.HasSuffix(f.Function, inTxFrame)
		if unsafe := unsafeFile(f.File); unsafe != "" {
			name = unsafe
		}
		return !known
	})
	return name, known
}

// UnsafeFunc returns the name of the middleware of Watermill's that has made a function, if it is one that does harm
// within a transaction.
func UnsafeFunc(fn any) string {
	v := reflect.ValueOf(fn)
	if v.Kind() != reflect.Func || v.IsNil() {
		return ""
	}
	f := runtime.FuncForPC(v.Pointer())
	if f == nil {
		return ""
	}
	file, _ := f.FileLine(v.Pointer())
	return unsafeFile(file)
}
