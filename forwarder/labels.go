package forwarder

import (
	"context"
	"runtime/pprof"
)

// labels adds to a context what a goroutine of the engine is called in profiles: what it does, and for which outbox.
func (e *engine) labels(ctx context.Context, goroutine string) context.Context {
	return pprof.WithLabels(ctx, pprof.Labels(
		"outbox", goroutine, "outbox_db", e.obs.db, "outbox_scope", e.cfg.Scope, "outbox_forwarder", e.cfg.Name,
	))
}

// labelled is work in a goroutine with its labels; else it would have those of the goroutine that starts it.
func (e *engine) labelled(ctx context.Context, goroutine string, work func(context.Context)) func() {
	ctx = e.labels(ctx, goroutine)
	return func() {
		pprof.SetGoroutineLabels(ctx)
		work(ctx)
	}
}
