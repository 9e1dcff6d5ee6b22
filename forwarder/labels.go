package forwarder

import (
	"context"
	"runtime/pprof"
)

// labels adds to a context the profiler labels of a goroutine of the engine: its task, and for which outbox.
func (e *engine) labels(ctx context.Context, goroutine string) context.Context {
	return pprof.WithLabels(ctx, pprof.Labels(
		"outbox", goroutine, "outbox_db", e.obs.db, "outbox_scope", e.cfg.Scope, "outbox_forwarder", e.cfg.Name,
	))
}

// labelled wraps work so that it runs with its own labels instead of those of the goroutine that starts it.
func (e *engine) labelled(ctx context.Context, goroutine string, work func(context.Context)) func() {
	ctx = e.labels(ctx, goroutine)
	return func() {
		pprof.SetGoroutineLabels(ctx)
		work(ctx)
	}
}
