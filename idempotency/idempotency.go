package idempotency

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// New returns a middleware that carries out each request once. Put it around each handler or around the mux, inside
// authentication. It can wrap several handlers, and is safe for concurrent use.
//
// Its own responses are RFC 9457 problems: 400 for an invalid or missing Idempotency-Key, 401 for an error of
// Config.Tenant, 408, 413 and 414 for slow or large requests, 409 with Retry-After while the request is in progress,
// 422 for a key of another request, 503 with Retry-After if the database cannot be reached, the outcome of COMMIT is
// unknown or the handler outlived Config.Timeout, and 500 if a handler failed without a response, its response is too
// large or lost, or the outcome of COMMIT is unknown for a request without a key.
//
// Refusals are logged at info level, 500 and 503 as errors; keys, bodies and responses are never logged. A nil logger
// means the logger of db. New returns outbox.ErrNoDB or an error that names an invalid field.
func New(db *outbox.DB, cfg Config, logger watermill.LoggerAdapter) (func(http.Handler) http.Handler, error) {
	cfg.setDefaults()
	if err := errors.Join((*core.DB)(db).Check(), cfg.validate()); err != nil {
		return nil, err
	}
	h := handler{
		db: (*core.DB)(db), cfg: cfg, logger: (*core.DB)(db).Logger(logger), drops: dropsOf(cfg.DropHeaders), gate: &gate{},
	}
	for statement, text := range map[*string]string{
		&h.sql.claim: sqltext.ClaimKey, &h.sql.read: sqltext.ReadAnswer,
		&h.sql.store: sqltext.StoreAnswer, &h.sql.storeMarked: sqltext.StoreAnswerMarked,
	} {
		*statement = h.db.Render(text)
	}
	return func(next http.Handler) http.Handler {
		one := h
		one.next = next
		return &one
	}, nil
}

// handler is the middleware around one handler.
type handler struct {
	db     *core.DB
	cfg    Config
	logger watermill.LoggerAdapter
	drops  map[string]bool // headers that are not stored
	gate   *gate
	sql    struct{ claim, read, store, storeMarked string }
	next   http.Handler
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(h.cfg.Methods, r.Method) {
		h.next.ServeHTTP(w, r)
		return
	}
	q, err := h.read(w, r)
	var fresh *recorder
	var known *response
	if err == nil {
		fresh, known, err = h.once(w.Header(), q)
	}
	switch {
	case err != nil:
		h.fail(w, r, err)
	case known != nil:
		known.replay(w)
	default:
		fresh.send(w)
	}
}

// once carries a request out, or finds its stored response. When it returns, the response is committed.
func (h *handler) once(before http.Header, q *request) (fresh *recorder, known *response, err error) {
	deadline := time.Now().Add(max(h.cfg.Wait, 0))
	if q.keyed() {
		leave, ok := h.gate.enter(q.r.Context(), q.id, deadline)
		if !ok {
			return nil, nil, errInProgress
		}
		defer leave() // before the response is sent: no request waits for a slow client
	}
	fresh, known, err = h.attempts(before, q, deadline, nil)
	var failed handlerError
	switch {
	case err == nil || errors.Is(err, outbox.ErrTxEnded) || errors.Is(err, outbox.ErrCommitUnknown):
	case known != nil && errors.Is(err, outbox.ErrRolledBack): // returned by OnBegin: the transaction was only for reading
		return nil, known, nil
	case fresh == nil:
	case errors.As(err, &failed): // before errors that it may wrap, such as ErrRolledBack of a nested InTx
		if fresh.status >= http.StatusBadRequest {
			h.logFailure(q.r, fresh.status, err)
			return fresh, nil, nil
		}
	case errors.Is(err, errUndone), errors.Is(err, outbox.ErrRolledBack):
		if !q.keyed() || !storable(fresh.status) {
			return fresh, nil, nil
		}
		// If another process has claimed the request meanwhile, its response counts, because nothing was done here.
		return h.attempts(before, q, deadline, fresh)
	}
	return fresh, known, err
}
