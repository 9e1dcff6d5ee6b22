package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

const (
	maxTenantBytes = 255
	maxMethodBytes = 32
	maxRouteBytes  = 1024
)

// identity identifies a request.
type identity struct{ tenant, method, route, key string }

// request is a request that was read completely and can be carried out several times.
type request struct {
	r           *http.Request
	id          identity // key is empty if the client sent none
	fingerprint []byte
	body        []byte
	out         *http.ResponseController
}

func (q *request) keyed() bool { return q.id.key != "" }

// read reads a request to its end. Its errors are refusals.
func (h *handler) read(w http.ResponseWriter, r *http.Request) (*request, error) {
	q := &request{r: r, id: identity{method: r.Method}, out: http.NewResponseController(w)}
	var err error
	if q.id.key, err = keyOf(r); err != nil {
		return nil, refusal{http.StatusBadRequest, "Idempotency-Key is not valid", err}
	}
	if h.cfg.Required && !q.keyed() {
		return nil, refusal{http.StatusBadRequest, "Idempotency-Key is missing",
			errors.New("this operation needs an Idempotency-Key header")}
	}
	if q.keyed() {
		if err := h.identify(q); err != nil {
			return nil, err
		}
	}
	q.body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, h.cfg.MaxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, refusal{http.StatusRequestEntityTooLarge, "",
			fmt.Errorf("the body has more than %d bytes", h.cfg.MaxBody)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, refusal{http.StatusRequestTimeout, "", errors.New("the body did not arrive in time")}
	case err != nil:
		return nil, refusal{http.StatusBadRequest, "", errors.New("the body could not be read")}
	case int64(len(q.body)) < r.ContentLength || r.MultipartForm != nil || len(r.PostForm) > 0:
		return nil, errBodyRead
	}
	if q.keyed() {
		q.fingerprint = fingerprint(r.URL.EscapedPath(), r.URL.RawQuery,
			r.Header.Get("Content-Type"), r.Header.Get("Content-Encoding"), string(q.body))
	}
	return q, nil
}

// wiringError is a mistake in the program around the middleware.
type wiringError struct{ error }

var errBodyRead = wiringError{errors.New("the body was read before: put package idempotency outside the code that " +
	"reads it, such as ParseForm")}

// identify sets the tenant and the route of a request.
func (h *handler) identify(q *request) (err error) {
	if q.id.tenant, err = h.cfg.Tenant(q.r); err != nil {
		return refusal{http.StatusUnauthorized, "", errors.New("the request has no tenant: authenticate it")}
	}
	if n := len(q.id.tenant); n > maxTenantBytes || !text.Storable(q.id.tenant) {
		return wiringError{fmt.Errorf("Config.Tenant returned %d bytes: it must be UTF-8 without NUL, of at most %d",
			n, maxTenantBytes)}
	}
	if q.id.route = h.cfg.Route(q.r); len(q.id.route) > maxRouteBytes || !text.Storable(q.id.route) {
		return refusal{http.StatusRequestURITooLong, "",
			fmt.Errorf("requests with an Idempotency-Key have a path of at most %d bytes", maxRouteBytes)}
	}
	return nil
}

// fingerprint returns the SHA-256 of parts and their lengths.
func fingerprint(parts ...string) []byte {
	hash := sha256.New()
	for _, part := range parts {
		_ = binary.Write(hash, binary.BigEndian, int64(len(part))) // a hash never fails
		_, _ = io.WriteString(hash, part)
	}
	return hash.Sum(nil)
}

// attempt returns a copy of the request for one call of the handler, which may change it. Call done afterwards.
func (q *request) attempt(ctx context.Context) (r *http.Request, done func()) {
	r = q.r.Clone(ctx)
	r.Body, r.ContentLength, r.TransferEncoding = http.NoBody, int64(len(q.body)), nil
	if len(q.body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(q.body))
	}
	return r, func() {
		if r.MultipartForm != nil { // the server only deletes the files of the request that it created
			_ = r.MultipartForm.RemoveAll()
		}
	}
}
