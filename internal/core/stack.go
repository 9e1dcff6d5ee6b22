package core

import (
	"reflect"
	"runtime"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// errElsewhere is the error of an InTx that another goroutine calls with the context of a transaction. In-process
// Pub/Subs pass contexts on, so the caller may be a loop that handles messages. It would join the publisher's
// transaction, and lose its work if that is rolled back.
var errElsewhere = text.Advise(ErrTxBusy, "outbox: InTx was called in a different goroutine from the function "+
	"whose transaction is in the context: "+
	"if the context came with a message, pass outbox.OutsideTx(msg.Context()); else call it in the function's goroutine")

// inTxFrame is the suffix of InTx's name in a stack.
const inTxFrame = "/internal/core.InTx"

// frames calls see with each stack frame above its caller, innermost first, until see returns false.
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

// here reports whether this goroutine is in an InTx.
func here() (found bool) {
	frames(func(f runtime.Frame) bool {
		found = strings.HasSuffix(f.Function, inTxFrame)
		return !found
	})
	return found
}

// unsafeWithin lists Watermill middlewares that do harm within a transaction, by the suffix of their file name.
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

// UnsafeBetween returns the name of a harmful Watermill middleware between the surrounding InTx and the caller. known
// is false if the caller is not in an InTx but in another goroutine.
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

// UnsafeFunc returns the name of the Watermill middleware that created a function, if it does harm within a
// transaction.
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
