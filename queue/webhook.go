package queue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// WebhookConfig configures NewWebhook. Verify and Item are required.
type WebhookConfig struct {
	// MaxBytes is the largest body that is read; default 1 MiB.
	MaxBytes int64
	// Verify makes sure that the request comes from whom it claims to, by its signature over the body. Any error refuses it
	// with 401. Compare signatures in constant time (hmac.Equal), and refuse timestamps that are old or in the future.
	Verify func(r *http.Request, body []byte) error
	// Item makes what is stored of a request. Its ID must be the sender's, the same for each repetition. ErrIgnore answers 200 and
	// stores nothing: for event types that nobody handles, which senders would repeat for days, or disable the endpoint. Any other
	// error refuses the request with 400.
	Item func(r *http.Request, body []byte) (Item, error)
	// Store, if not nil, says where the request is stored, by its tenant for example, instead of the store that NewWebhook got. It
	// is called after Verify. An error refuses the request with 404.
	Store func(r *http.Request) (*Store, error)
	// ConflictOnChange refuses with 409 a message that is known with other content, and leaves it as it was. Default: it gets the
	// new content unless it was handled before, and the difference is logged.
	ConflictOnChange bool
}

func (c WebhookConfig) validate() error {
	switch {
	case c.MaxBytes < 0:
		return fmt.Errorf("WebhookConfig.MaxBytes is %d: use 0 for 1 MiB, or more", c.MaxBytes)
	case c.Verify == nil:
		return errors.New("WebhookConfig.Verify is required: without it anybody could store messages here; " +
			"if something before it verifies requests, let it return nil")
	case c.Item == nil:
		return errors.New("WebhookConfig.Item is required: it says by which ID the sender's repetitions are known")
	}
	return nil
}

// HeaderResult is the header of a webhook's answer that says what became of the message: StoreResult.String, or "ignored".
const HeaderResult = "Queue-Result"

// retryAfter is when a sender is asked to try again while the database is away, in seconds.
const retryAfter = "5"

// NewWebhook returns a handler that stores what is posted to it. It answers 200 when the message is committed, also if it was
// known before, since senders repeat what they get another answer to. Otherwise 405 for anything but POST, 413 for a body, or a
// payload, that is too large, 401, 404 and 400 as WebhookConfig says and for what cannot be stored, 409 as ConflictOnChange
// says, and 503 with Retry-After when the database does not answer. A client that goes away interrupts
// nothing: what is stored may be answered to nobody, and then it is known at the repetition.
//
// Refusals are logged at info level, errors of the database as errors, and bodies never. A nil logger is that of the database's
// handle. It returns outbox.ErrNoDB for a store that is nil without WebhookConfig.Store, or an error that names the field at fault.
func NewWebhook(store *Store, cfg WebhookConfig, logger watermill.LoggerAdapter) (http.Handler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if store == nil && cfg.Store == nil {
		return nil, outbox.ErrNoDB
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 1 << 20
	}
	if cfg.Store == nil {
		cfg.Store = func(*http.Request) (*Store, error) { return store, nil }
	}
	w := &webhook{cfg: cfg, logger: logger}
	if logger == nil {
		w.logger = watermill.NopLogger{}
	}
	if store != nil {
		w.logger = store.db.Logger(logger)
	}
	return w, nil
}

type webhook struct {
	cfg    WebhookConfig
	logger watermill.LoggerAdapter
}

// refusal is an error with the status that answers it.
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
	return refusal{status, err}
}

func (h *webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	result, err := h.take(w, r)
	if err == nil {
		w.Header().Set(HeaderResult, result)
		w.WriteHeader(http.StatusOK)
		return
	}
	var no refusal
	var panicked panicError
	switch {
	case errors.As(err, &no):
		h.logger.Info("A webhook was refused", watermill.LogFields{"status": no.status, "err": no.Error(), "path": r.URL.Path})
	case errors.As(err, &panicked):
		no.status = http.StatusInternalServerError
		h.logger.Error("A webhook failed", err, watermill.LogFields{"path": r.URL.Path, "stack": panicked.stack})
	default:
		no.status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", retryAfter)
		h.logger.Error("A webhook could not be stored", err, watermill.LogFields{"path": r.URL.Path})
	}
	if no.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", http.MethodPost)
	}
	http.Error(w, http.StatusText(no.status), no.status) // the reason is for the log: it may help whoever tries signatures
}

// take returns what HeaderResult says of a request that is answered with 200.
func (h *webhook) take(w http.ResponseWriter, r *http.Request) (string, error) {
	if r.Method != http.MethodPost {
		return "", refused(http.StatusMethodNotAllowed, fmt.Errorf("the method is %s", r.Method))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.cfg.MaxBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return "", refused(http.StatusRequestEntityTooLarge, err)
	case err != nil:
		return "", refused(http.StatusBadRequest, fmt.Errorf("read the body: %w", err))
	}
	if err := guarded(func() error { return h.cfg.Verify(r, body) }); err != nil {
		return "", refused(http.StatusUnauthorized, fmt.Errorf("verify: %w", err))
	}
	var store *Store
	err = guarded(func() (err error) { store, err = h.cfg.Store(r); return err })
	if err == nil && store == nil {
		err = ErrUnknown
	}
	if err != nil {
		return "", refused(http.StatusNotFound, fmt.Errorf("choose the store: %w", err))
	}
	var item Item
	err = guarded(func() (err error) { item, err = h.cfg.Item(r, body); return err })
	if errors.Is(err, ErrIgnore) {
		h.logger.Debug("webhook ignored", watermill.LogFields{"path": r.URL.Path})
		return "ignored", nil
	}
	if err != nil {
		return "", refused(http.StatusBadRequest, fmt.Errorf("make an item of it: %w", err))
	}
	if limit := store.cfg.MaxPayloadBytes; limit > 0 && len(item.Payload) > limit {
		return "", refused(http.StatusRequestEntityTooLarge, fmt.Errorf("the payload has %d bytes, StoreConfig.MaxPayloadBytes is %d", len(item.Payload), limit))
	}
	result, err := h.store(r.Context(), store, item)
	return result.String(), err
}

var errConflict = errors.New("the message is known with other content")

// store returns when the message is committed. The client's patience does not count.
func (h *webhook) store(ctx context.Context, store *Store, item Item) (result StoreResult, err error) {
	ctx, cancel := context.WithTimeout(core.OutsideTx(context.WithoutCancel(ctx)), queryTimeout)
	defer cancel()
	if h.cfg.ConflictOnChange && len(item.Hash) == 0 {
		item.Hash = SHA256(item.Payload)
	}
	put := func(ctx context.Context) error {
		stored, err := store.Enqueue(ctx, item)
		if err != nil {
			return err
		}
		result = stored[0].Result
		if h.cfg.ConflictOnChange && stored[0].Mismatch {
			return refused(http.StatusConflict, errConflict) // rolls back
		}
		return nil
	}
	if h.cfg.ConflictOnChange {
		err = core.InTx(ctx, store.db, core.TxOptions{}, put)
	} else {
		err = put(ctx)
	}
	if dataError(err) {
		return 0, refused(http.StatusBadRequest, err)
	}
	return result, err
}
