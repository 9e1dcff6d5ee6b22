package idempotency

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

var (
	errInProgress = refusal{http.StatusConflict, "A request with this Idempotency-Key is in progress",
		errors.New("repeat the request later, with the same Idempotency-Key")}
	errOtherRequest = refusal{http.StatusUnprocessableEntity, "Idempotency-Key is already used",
		errors.New("the Idempotency-Key was sent before with another path, query, content type or body: " +
			"use a new one for a new request")}
	errDead = errors.New("response lost: the handler of the first request ended its transaction, so its work may be " +
		"done: leave COMMIT and ROLLBACK to the middleware; check its effects, and delete the row so that the " +
		"request is carried out again")
	errGone = errors.New("stored response gone: its row was deleted between two statements: let the client repeat the " +
		"request")
)

// minLockWait is the shortest limit for a statement's wait for a lock.
const minLockWait = 100 * time.Millisecond

// claim begins a request in the transaction of ctx, or returns its stored response.
func (h *handler) claim(ctx context.Context, q *request, deadline time.Time) (*response, error) {
	tx, err := h.db.Tx(ctx)
	if err != nil {
		return nil, err
	}
	var ours, standby bool
	var lockTimeout string
	// The server may wait for other locks too, such as to extend the table, so the shortest wait is not zero.
	wait := strconv.FormatInt(max(time.Until(deadline), minLockWait).Milliseconds(), 10)
	// An attempt that is idle for longer has exceeded Config.Timeout, and cannot commit.
	idle := strconv.FormatInt(min(max(h.cfg.Timeout, 0).Milliseconds(), math.MaxInt32), 10)
	err = drive.Collect(ctx, tx, func(rows drive.Rows) error { return rows.Scan(&ours, &standby, &lockTimeout) },
		h.sql.claim, q.id.tenant, q.id.method, q.id.route, q.id.key, q.fingerprint, h.cfg.Retention.Seconds(), wait, idle)
	switch {
	case text.SQLState(err) == text.LockNotAvailable:
		return nil, errInProgress
	case err != nil:
		return nil, fmt.Errorf("claim the request: %w", text.Explain(err))
	case ours:
		return nil, nil
	}
	known, err := h.known(ctx, tx, q)
	if err == nil && !standby {
		core.MarkReadOnly(ctx)
	}
	return known, err
}

// known reads the stored response of a request.
func (h *handler) known(ctx context.Context, tx drive.Querier, q *request) (*response, error) {
	var a response
	var hash []byte
	var status sql.NullInt64
	found := false
	err := drive.Collect(ctx, tx, func(rows drive.Rows) error {
		found = true
		return rows.Scan(&hash, &status, &a.header, &a.body)
	}, h.sql.read, q.id.tenant, q.id.method, q.id.route, q.id.key)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the response: %w", text.Explain(err))
	case !found:
		return nil, errGone
	case !bytes.Equal(hash, q.fingerprint):
		return nil, errOtherRequest
	case !status.Valid:
		return nil, errDead
	}
	a.status = int(status.Int64)
	return &a, nil
}

// store stores the response in the transaction of ctx.
func (h *handler) store(ctx context.Context, q *request, w *recorder) error {
	a, err := responseOf(w, h.drops, h.cfg.MaxResponse)
	if err != nil {
		return err
	}
	tx, err := h.db.Tx(ctx)
	if err != nil {
		return err
	}
	statement := h.sql.store
	if marked, ok := tx.(interface{ Marked() bool }); ok && marked.Marked() {
		statement = h.sql.storeMarked
	}
	_, err = tx.Exec(ctx, statement, q.id.tenant, q.id.method, q.id.route, q.id.key, a.status, a.header, a.body)
	if err != nil {
		return fmt.Errorf("store the response: %w", text.Explain(drive.Checked(ctx, err)))
	}
	return nil
}
