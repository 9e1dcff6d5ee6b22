package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/schema"
)

// bookkeepingTimeout bounds what Outcomes writes after an attempt, whose context may be over.
const bookkeepingTimeout = 5 * time.Second

// OutcomesConfig configures Outcomes. The zero value is ready for use.
type OutcomesConfig struct {
	// Tables are the names of the tables; default: outbox in the search path.
	Tables schema.Names
	// DeadLetterTopic is where poison messages are published, through the outbox; default "dead_letters".
	DeadLetterTopic string
	// Classify gives a verdict on errors that wrap neither ErrPoison nor ErrAlreadyProcessed: Poisoned puts
	// the message aside, Duplicate acks it, everything else nacks it. Default: all of them are nacked.
	Classify func(err error) Outcome
	// MaxAttempts makes a message poison whose recorded failures reach it; default 0, no limit.
	// Failures are recorded by Inbox's key and consumer, so it has no effect without Inbox, and what fails before
	// Inbox was reached, such as a database that is down, does not count.
	MaxAttempts int
	// Observer, if not nil, is told the outcome of each message.
	Observer Observer
	// Logger, if not nil, gets an error line for each message that is put aside.
	Logger watermill.LoggerAdapter
}

func (c *OutcomesConfig) setDefaults() {
	c.Tables = c.Tables.WithDefaults()
	if c.DeadLetterTopic == "" {
		c.DeadLetterTopic = "dead_letters"
	}
	if c.Classify == nil {
		c.Classify = func(error) Outcome { return Failed }
	}
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}
}

func (c OutcomesConfig) validate() error {
	switch {
	case len(c.DeadLetterTopic) > outbox.MaxTopicBytes || !schema.Storable(c.DeadLetterTopic):
		return fmt.Errorf("OutcomesConfig.DeadLetterTopic must be UTF-8 without NUL, of at most %d bytes", outbox.MaxTopicBytes)
	case c.MaxAttempts < 0:
		return fmt.Errorf("OutcomesConfig.MaxAttempts is %d: use 0 for no limit", c.MaxAttempts)
	}
	return nil
}

// Outcomes decides what becomes of a message whose handler returned an error, after its transaction was
// rolled back. It goes outside of Tx.
//
//   - ErrAlreadyProcessed: noted as processed in the inbox, acked.
//   - ErrPoison, a verdict Poisoned of Classify, or too many attempts: marked dead in the inbox and published to the
//     dead-letter topic through the outbox, both in one new transaction, then acked. If that fails, nacked. If a copy
//     was processed meanwhile, or put aside, nothing of that: acked as a duplicate.
//   - Any other error: the attempt and the error are recorded in the inbox, unless a copy of the message was
//     processed meanwhile; nacked.
//
// The inbox row is the one that Inbox asked for; if there is no Inbox, or it was not reached, nothing is
// recorded, and poison messages are still put aside. A panic counts as any other error and goes on; if
// it makes the message dead, its next delivery is acked. A dead letter has the UUID, payload and
// metadata of its message, and the metadata constants of this package. Error texts are stored up to
// 1 KiB, so keep secrets out of errors.
//
// If db is nil or the configuration bad, every message fails with an error that says so.
func Outcomes(db *outbox.DB, cfg OutcomesConfig) message.HandlerMiddleware {
	cfg.setDefaults()
	letters, err := outbox.NewPublisher(db, outbox.PublisherConfig{Tables: cfg.Tables, KeyFunc: letterKey}, cfg.Logger)
	if err = errors.Join(err, cfg.validate()); err != nil {
		return refuse("Outcomes", err)
	}
	o := &outcomes{db: db, cfg: cfg, letters: letters}
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) { return o.handle(next, msg) }
	}
}

type outcomes struct {
	db      *outbox.DB
	cfg     OutcomesConfig
	letters *outbox.Publisher
}

func (o *outcomes) handle(next message.HandlerFunc, msg *message.Message) (produced []*message.Message, err error) {
	outside := msg.Context()
	ctx, h, outermost := handlingOf(msg)
	if !outermost {
		return nil, errors.New("middleware.Outcomes is inside of middleware.Tx or of another Outcomes: add it once, outside of Tx")
	}
	msg.SetContext(ctx)
	outcome, finished := Failed, false
	defer func() {
		cause := err
		if !finished {
			cause = errPanicked
			outcome, _ = o.settle(ctx, msg, h, cause)
		} else if outcome, err = o.settle(ctx, msg, h, cause); outcome != Processed {
			produced = nil
		}
		h.ended.Store(true)
		msg.SetContext(outside)
		observe(o.cfg.Observer, o.db.Name(), msg, h, outcome, cause)
	}()
	produced, err = next(msg)
	finished = true
	return produced, err
}

// settle returns the outcome and what to return to the Router: nil to ack, an error to nack.
func (o *outcomes) settle(ctx context.Context, msg *message.Message, h *handling, err error) (Outcome, error) {
	if err == nil {
		return h.outcome(nil), nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bookkeepingTimeout)
	defer cancel()
	verdict := o.verdict(h, err)
	switch verdict {
	case Poisoned:
		buried, buryErr := o.bury(ctx, msg, h.claim, err)
		if buryErr != nil {
			return Failed, errors.Join(err, fmt.Errorf("put aside: %w", schema.Explain(buryErr)))
		}
		if !buried {
			return Duplicate, nil
		}
		o.cfg.Logger.Error("Message put aside as a dead letter", err, o.fields(ctx, msg).Add(watermill.LogFields{
			"dead_letter_topic": o.cfg.DeadLetterTopic,
		}))
		return Poisoned, nil
	case Duplicate:
		o.record(ctx, msg, h.claim, schema.ClaimInbox, nil)
		return Duplicate, nil
	}
	o.record(ctx, msg, h.claim, schema.FailInbox, errorText(err))
	return Failed, err
}

func (o *outcomes) verdict(h *handling, err error) Outcome {
	switch {
	case errors.Is(err, ErrPoison):
		return Poisoned
	case errors.Is(err, ErrAlreadyProcessed):
		return Duplicate
	}
	if verdict := o.cfg.Classify(err); verdict == Poisoned || verdict == Duplicate {
		return verdict
	}
	if o.cfg.MaxAttempts > 0 && h.claim != nil && h.claim.failures+1 >= o.cfg.MaxAttempts {
		return Poisoned
	}
	return Failed
}

// record writes to the inbox row. Its own failure changes nothing about the message: the note is missing.
func (o *outcomes) record(ctx context.Context, msg *message.Message, c *claim, statement string, arg any) {
	if c == nil {
		return
	}
	if _, err := o.db.Exec(ctx, c.tables.Render(statement), c.consumer, c.key, arg); err != nil {
		o.cfg.Logger.Error("Could not note the outcome in the inbox", err, o.fields(ctx, msg))
	}
}

func (o *outcomes) fields(ctx context.Context, msg *message.Message) watermill.LogFields {
	return watermill.LogFields{
		"handler_name": message.HandlerNameFromCtx(ctx), "topic": message.SubscribeTopicFromCtx(ctx), "message_uuid": msg.UUID,
	}
}
