package idempotency

import (
	"errors"
	"net/http"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// fail responds to a request that has no response of the handler.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	var no refusal
	if errors.As(err, &no) {
		// Cause: a key that is not valid or was used for another request, a body that is too large, or a repetition
		// in progress.
		// Cure: none here; the client was told.
		h.logger.Info("request refused", watermill.LogFields{
			"status": no.status, "err": no.Error(), "method": r.Method, "path": r.URL.Path,
		})
		h.refuse(w, no)
		return
	}
	status := statusOf(err)
	unknown := errors.Is(err, outbox.ErrCommitUnknown) && len(r.Header.Values(HeaderKey)) == 0
	if unknown { // after a 503 clients and proxies repeat a request, and without a key it would be carried out twice
		status = http.StatusInternalServerError
	}
	h.logFailure(r, status, err)
	no = refusal{status: status} // the reason is only logged
	switch {
	case unknown:
		no.error = errors.New("the request may have been carried out: check before you repeat it; with an " +
			"Idempotency-Key a repeat is safe")
	case errors.Is(err, errDead):
		no.error = errors.New("the request was carried out, but its response was lost")
	case status == http.StatusServiceUnavailable:
		no.error = errors.New("repeat the request later, with the same Idempotency-Key")
	}
	h.refuse(w, no)
}

func (h *handler) logFailure(r *http.Request, status int, err error) {
	fields := watermill.LogFields{"status": status, "method": r.Method, "path": r.URL.Path}
	switch {
	case errors.Is(err, outbox.ErrCommitUnknown):
		// Cause: the connection broke during COMMIT.
		// Cure: the client repeats the request; without a key it checks the effects first.
		h.logger.Error("outcome of COMMIT is unknown: repeat the request only with the same Idempotency-Key", err, fields)
	case errors.Is(err, outbox.ErrTxEnded), errors.Is(err, errDead):
		// Cause: the handler ended its transaction.
		// Cure: check the effects; delete the request's row to allow a repetition.
		h.logger.Error("request failed: its handler may have committed", err, fields)
	default:
		// Cause: the handler failed, its response is too large, or the database.
		// Cure: the client may repeat the request.
		h.logger.Error("request failed: nothing was committed", err, fields)
	}
}

// statusOf returns 503 for errors that may not recur, else 500.
func statusOf(err error) int {
	var failed handlerError
	var called calledError
	var wiring wiringError
	state := text.SQLState(err)
	switch {
	case errors.Is(err, outbox.ErrTxEnded), errors.Is(err, errTooLarge), errors.Is(err, errStreaming),
		errors.As(err, &wiring), errors.Is(err, errDead):
		return http.StatusInternalServerError
	case errors.As(err, &failed):
		if failed.outlived || temporary(state) {
			return http.StatusServiceUnavailable
		}
		return http.StatusInternalServerError
	case errors.Is(err, outbox.ErrCommitUnknown), !errors.As(err, &called):
		return http.StatusServiceUnavailable
	case errors.Is(err, pgx.ErrTxCommitRollback), state != "" && !temporary(state):
		return http.StatusInternalServerError
	}
	return http.StatusServiceUnavailable
}

// temporary reports whether an SQLSTATE concerns the state of the server, not the handler's statements.
func temporary(state string) bool {
	for _, class := range []string{"08", "25006", "25P03", "40", "53", "55", "57", "58", "XX"} {
		if strings.HasPrefix(state, class) {
			return true
		}
	}
	return false
}
