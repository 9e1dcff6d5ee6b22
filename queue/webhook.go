package queue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// WebhookConfig configures NewWebhook. Verify and Item are required.
type WebhookConfig struct {
	// MaxBytes is the largest body, in bytes; default 1 MiB.
	MaxBytes int64
	// ReadTimeout is how long the body may take to arrive; default 10 s, -1 none.
	ReadTimeout time.Duration
	// Verify checks the sender's signature over the body. Required. An error results in a 401. Compare signatures with
	// hmac.Equal, and refuse old timestamps.
	Verify func(r *http.Request, body []byte) error
	// Item returns the item to store for a request. Required. The ID must be the same each time the sender repeats the
	// request. ErrIgnore results in a 200 and stores nothing: return it for event types without a handler.
	// outbox.RetryAfter, here and in Verify and Store, results in a 503 with Retry-After; any other error in a 400.
	Item func(r *http.Request, body []byte) (Item, error)
	// Store chooses the store of a request after Verify, such as the tenant's; default: the store passed to NewWebhook. An
	// error results in a 404.
	Store func(r *http.Request) (*Store, error)
	// ConflictOnChange responds with 409 to a known message with other content. Without it, the content is replaced unless
	// the message was handled, and the difference is logged.
	ConflictOnChange bool
}

func (c WebhookConfig) validate() error {
	switch {
	case c.MaxBytes < 0:
		return fmt.Errorf("WebhookConfig.MaxBytes is %d: use 0 for 1 MiB, or more", c.MaxBytes)
	case c.ReadTimeout < -1:
		return fmt.Errorf("WebhookConfig.ReadTimeout is %s: use -1 for none", c.ReadTimeout)
	case c.Verify == nil:
		return errors.New("WebhookConfig.Verify is required: without it anybody could store messages here; if " +
			"requests are verified before they get here, let it return nil")
	case c.Item == nil:
		return errors.New("WebhookConfig.Item is required: it makes the ID by which repeated requests are recognized")
	}
	return nil
}

// headerResult is the header of a webhook's response with the outcome for the message: StoreResult.String, or
// "ignored".
const headerResult = "Queue-Result"

// defaultRetryAfter is when a sender should retry during an outage of the database.
const defaultRetryAfter = 5 * time.Second

// NewWebhook returns a handler that stores posted messages. It responds with 200 when the message is committed, even if
// it was already known. Other responses are 405 for anything but POST, 408 for a slow body, 413 for a large body or
// payload, 401, 404, 400 and 409 as in WebhookConfig, 400 for a message that cannot be stored, and 503 with Retry-After
// if a function returns outbox.RetryAfter, the database does not respond, or the message is being handled with another
// hash. A client that disconnects interrupts nothing.
//
// Refusals are logged at info level, errors of the database as errors, and bodies never: quotations and numbers are
// removed from errors of Verify and Item. If logger is nil, the logger of the handle is used. NewWebhook returns
// outbox.ErrNoDB for a nil store without WebhookConfig.Store, or an error that names an invalid field.
func NewWebhook(store *Store, cfg WebhookConfig, logger watermill.LoggerAdapter) (http.Handler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if store == nil && cfg.Store == nil {
		return nil, outbox.ErrNoDB
	}
	fill(&cfg.MaxBytes, 1<<20)
	fill(&cfg.ReadTimeout, 10*time.Second)
	if cfg.Store != nil {
		store = nil
	}
	return &webhook{cfg: cfg, store: store, logger: logger}, nil
}

type webhook struct {
	cfg    WebhookConfig
	store  *Store                  // nil = WebhookConfig.Store chooses
	logger watermill.LoggerAdapter // nil = the loggers of the databases' handles

	unbounded sync.Once // warns once that bodies have no deadline
}

// loggerOf returns a logger that adds the name of the store's database to each line, if the store is known.
func (h *webhook) loggerOf(store *Store) watermill.LoggerAdapter {
	if store != nil {
		return store.db.Logger(h.logger)
	}
	return core.RedactingLogger(h.logger)
}

// refusal is an error with the HTTP status of the response.
type refusal struct {
	status int
	error
}

func (r refusal) Unwrap() error { return r.error }

func refused(status int, err error) error {
	var p panicError
	if errors.As(err, &p) {
		return err
	}
	if later := new(core.RetryAfterError); errors.As(err, &later) {
		status = http.StatusServiceUnavailable
	}
	return refusal{status, err}
}

// retryAfter returns when the sender should retry, in seconds.
func retryAfter(err error) string {
	wait := defaultRetryAfter
	if later := new(core.RetryAfterError); errors.As(err, &later) && later.Wait > 0 {
		wait = later.Wait
	}
	return strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10)
}

// quoteless removes quotations from an error of code that has seen the body, because decoders quote it.
func quoteless(what string, err error) error {
	var p panicError
	if errors.As(err, &p) {
		return panicError{errors.New(what + ": " + text.WithoutQuotes(p.error)), p.stack}
	}
	return text.Advise(err, "%s: %s", what, text.WithoutQuotes(err))
}

func (h *webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	result, store, err := h.take(w, r)
	logger, path := h.loggerOf(store), r.URL.Path
	if err == nil {
		if result == ignored {
			logger.Debug("webhook ignored", watermill.LogFields{"path": path})
		}
		w.Header().Set(headerResult, result)
		w.WriteHeader(http.StatusOK)
		return
	}
	var no refusal
	var panicked panicError
	switch {
	case errors.As(err, &no):
		logger.Info("webhook refused", watermill.LogFields{"status": no.status, "err": no.Error(), "path": path})
	case errors.As(err, &panicked):
		no.status = http.StatusInternalServerError
		// Cause: a bug of Verify, Item or Store; see the field stack.
		// Cure: the sender repeats it.
		logger.Error("webhook panicked", err, watermill.LogFields{"path": path, "stack": panicked.stack})
	default:
		no.status = http.StatusServiceUnavailable
		// Cause: the database, or the message cannot be stored.
		// Cure: the sender repeats it.
		logger.Error("webhook not stored: the response asks the sender to repeat "+
			"it", err, watermill.LogFields{"path": path})
	}
	switch no.status {
	case http.StatusMethodNotAllowed:
		w.Header().Set("Allow", http.MethodPost)
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", retryAfter(err))
	}
	http.Error(w, http.StatusText(no.status), no.status) // the reason is only logged
}

// ignored is the headerResult for ErrIgnore.
const ignored = "ignored"

// take returns the headerResult of a request that succeeds, and the store, if it is known.
func (h *webhook) take(w http.ResponseWriter, r *http.Request) (result string, store *Store, err error) {
	store = h.store
	body, err := h.read(w, r)
	if err != nil {
		return "", store, err
	}
	if err := guarded(func() error { return h.cfg.Verify(r, body) }); err != nil {
		return "", store, refused(http.StatusUnauthorized, quoteless("verify", err))
	}
	if store == nil {
		err = guarded(func() (err error) { store, err = h.cfg.Store(r); return err })
		if err == nil && store == nil {
			err = ErrNotFound
		}
		if err != nil {
			return "", nil, refused(http.StatusNotFound, fmt.Errorf("choose the store: %w", err))
		}
	}
	var item Item
	err = guarded(func() (err error) { item, err = h.cfg.Item(r, body); return err })
	if errors.Is(err, ErrIgnore) {
		return ignored, store, nil
	}
	if err != nil {
		return "", store, refused(http.StatusBadRequest, quoteless("make the item", err))
	}
	if limit := store.cfg.MaxPayloadBytes; limit > 0 && len(item.Payload) > limit {
		return "", store, refused(http.StatusRequestEntityTooLarge,
			fmt.Errorf("payload of %d bytes: StoreConfig.MaxPayloadBytes is %d", len(item.Payload), limit))
	}
	stored, err := h.put(r.Context(), store, item)
	return stored.String(), store, err
}

// read reads the body, which must arrive in time.
func (h *webhook) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	// The server reads the rest of a body even after a refusal, so the deadline applies to all requests and ends only with
	// the body.
	bounded := h.bound(w, r)
	if r.Method != http.MethodPost {
		return nil, refused(http.StatusMethodNotAllowed, fmt.Errorf("method %s", r.Method))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.cfg.MaxBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, refused(http.StatusRequestEntityTooLarge, err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, refused(http.StatusRequestTimeout, fmt.Errorf("read the body: %w", err))
	case err != nil:
		return nil, refused(http.StatusBadRequest, fmt.Errorf("read the body: %w", err))
	}
	if bounded {
		// the deadline was set, and the sender may reuse the connection
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	return body, nil
}

// bound sets a deadline for reading the body, and reports whether it could.
func (h *webhook) bound(w http.ResponseWriter, r *http.Request) bool {
	server, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
	if h.cfg.ReadTimeout < 0 || server != nil && server.ReadTimeout > 0 && server.ReadTimeout <= h.cfg.ReadTimeout {
		return false
	}
	err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(h.cfg.ReadTimeout))
	if err != nil {
		h.unbounded.Do(func() {
			h.loggerOf(h.store).Info("warning: no read deadline for webhook bodies: the http.ResponseWriter does "+
				"not support one: give its wrapper an Unwrap method, and set "+
				"http.Server.ReadTimeout", watermill.LogFields{"err": err.Error()})
		})
	}
	return err == nil
}

// Cause: the ID is known, and ConflictOnChange is set.
// Cure: correct the sender.
var errConflict = errors.New("message ID reused with different content")

// put returns when the message is committed, even if the client has gone.
func (h *webhook) put(ctx context.Context, store *Store, item Item) (result StoreResult, err error) {
	ctx, cancel := context.WithTimeout(core.OutsideTx(context.WithoutCancel(ctx)), queryTimeout)
	defer cancel()
	if h.cfg.ConflictOnChange && len(item.Hash) == 0 {
		item.Hash = SHA256(item.Payload)
	}
	enqueue := func(ctx context.Context) error {
		stored, err := store.Enqueue(ctx, item)
		if err != nil {
			return err
		}
		result = stored[0].Result
		if h.cfg.ConflictOnChange && stored[0].Mismatch {
			return refused(http.StatusConflict, errConflict) // rolls back
		}
		return stored[0].notStored()
	}
	if h.cfg.ConflictOnChange {
		err = store.inOwnTx(ctx, enqueue)
	} else {
		err = enqueue(ctx)
	}
	if dataError(err) {
		return 0, refused(http.StatusBadRequest, err)
	}
	return result, err
}
