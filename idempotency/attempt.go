package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// errUndone rolls back a response of 400 or above; the client gets the response.
//
// Cause: the handler responded with 400 or above.
// Cure: none is needed.
var errUndone = errors.New("responded with an error")

// handlerError is the error of a HandlerFunc.
type handlerError struct {
	error
	outlived bool // exceeded Config.Timeout or the deadline of its request
}

func (e handlerError) Unwrap() error { return e.error }

// calledError is an error that occurred after the handler was called.
type calledError struct{ error }

func (e calledError) Unwrap() error { return e.error }

// attempts repeats an attempt that ended in a serialization failure or a deadlock. If a response is already stored, it
// does not call the handler.
func (h *handler) attempts(before http.Header, q *request, deadline time.Time, prepared *recorder) (
	fresh *recorder, known *response, err error,
) {
	for n := 0; ; n++ {
		fresh, known, err = h.attempt(before, q, deadline, prepared)
		if err == nil || n >= h.cfg.MaxRetries || !repeatable(err) {
			return fresh, known, err
		}
		h.logger.Debug("repeating the request in a new transaction", watermill.LogFields{
			"attempt": n + 2, "sqlstate": text.SQLState(err),
		})
		core.Pause(context.WithoutCancel(q.r.Context()), core.Backoff(h.cfg.Backoff).Delay(n+1))
	}
}

// repeatable reports whether an attempt failed only because of concurrent transactions, and certainly committed
// nothing.
func repeatable(err error) bool {
	if errors.Is(err, outbox.ErrCommitUnknown) || errors.Is(err, outbox.ErrTxEnded) {
		return false
	}
	state := text.SQLState(err)
	return state == "40001" || state == "40P01"
}

// attempt runs one transaction. It may return a response together with an error.
func (h *handler) attempt(before http.Header, q *request, deadline time.Time, prepared *recorder) (
	fresh *recorder, known *response, err error,
) {
	ctx, cancel := core.Lifetime(core.OutsideTx(q.r.Context()), h.cfg.Timeout)
	defer cancel()
	opts := core.TxOptions{Isolation: h.cfg.Isolation}
	if h.cfg.OnBegin != nil {
		opts.OnBegin = func(ctx context.Context) error { return h.cfg.OnBegin(ctx, q.r.WithContext(ctx)) }
	}
	fresh = prepared
	err = core.InTx(ctx, h.db, opts, func(ctx context.Context) error {
		if q.keyed() {
			if known, err = h.claim(ctx, q, deadline); err != nil || known != nil {
				return err
			}
		}
		if prepared == nil {
			fresh = newRecorder(before, h.cfg.MaxResponse, q.out)
			if err := h.call(ctx, fresh, q); err != nil {
				return err
			}
		}
		if q.keyed() {
			return h.store(ctx, q, fresh)
		}
		return nil
	})
	if err != nil && fresh != nil {
		err = calledError{err}
	}
	return fresh, known, err
}

// call calls the handler. An error rolls back.
func (h *handler) call(ctx context.Context, w *recorder, q *request) error {
	var failed error
	r, done := q.attempt(context.WithValue(ctx, failureKey{}, &failed))
	defer done()
	h.next.ServeHTTP(w, r)
	if failed != nil {
		return handlerError{failed, ctx.Err() != nil}
	}
	err := w.end()
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("the handler outlived Config.Timeout or the deadline of its request: %w", ctx.Err())
	case w.status >= http.StatusBadRequest:
		return errUndone
	}
	return nil
}

type failureKey struct{}

// HandlerFunc is an http.Handler that rolls back when it returns an error. Inside the middleware of New an error is
// logged and nothing is stored. The client gets the function's response if that is 400 or above, a 503 for a temporary
// error of Postgres or after Config.Timeout, and a 500 otherwise. After a serialization failure or a deadlock the
// function is called again with a new transaction. Without the middleware, an error results in a 500.
type HandlerFunc func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP calls the function.
func (f HandlerFunc) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := f(w, r)
	if err == nil {
		return
	}
	if failed, ok := r.Context().Value(failureKey{}).(*error); ok {
		*failed = err
		return
	}
	http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
}
