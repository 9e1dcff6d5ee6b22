package integration_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
)

// The parts of a stack that can fail.
const (
	atHandler  = "handler"
	atPublish  = "Publisher"
	atBegin    = "TxConfig.OnBegin"
	atKey      = "InboxConfig.Key"
	atMismatch = "InboxConfig.OnMismatch"
)

// failure is how a part fails.
type failure func(ctx context.Context, h handle) error

func panics(context.Context, handle) error         { panic("boom") }
func overtime(ctx context.Context, _ handle) error { <-ctx.Done(); return nil }
func badSQL(ctx context.Context, h handle) error   { _ = h.execTx(ctx, "select 1/0"); return nil }
func returning(err error) failure                  { return func(context.Context, handle) error { return err } }

// failingStack delivers copies of a message to a stack of which a part fails.
type failingStack struct {
	h      handle
	cfg    middleware.StackConfig
	at     string  // the parts
	fails  failure // nil if they do not
	calls  int     // of the parts
	failed bool    // whether the last one returned an error or panicked
	waits  waits
	seen   seen
	logger *watermill.CaptureLoggerAdapter
	stack  message.HandlerFunc
	msg    *message.Message
	ctx    context.Context // of the message
}

// newFailingStack has a consumer and a message of this name. Unless cfg has another MaxAttempts, the message is dead
// after four failures.
func newFailingStack(t testing.TB, h handle, name, at string, fails failure, cfg middleware.StackConfig) *failingStack {
	s := &failingStack{h: h, cfg: cfg, at: at, logger: watermill.NewCaptureLogger()}
	s.msg, s.ctx = newMessage(name), t.Context()
	if s.cfg.ErrorHandler.MaxAttempts == 0 {
		s.cfg.ErrorHandler.MaxAttempts = 4
	}
	s.cfg.ErrorHandler.MinDeadAge, s.cfg.ErrorHandler.Backoff = -1, s.waits.backoff()
	s.cfg.Inbox.Consumer, s.cfg.Inbox.CheckContent = name, true
	if strings.Contains(at, atBegin) {
		s.cfg.Tx.OnBegin = func(ctx context.Context, _ *message.Message) error { return s.call(ctx) }
	}
	if strings.Contains(at, atKey) {
		s.cfg.Inbox.Key = func(msg *message.Message) (string, error) { return msg.UUID, s.call(msg.Context()) }
	}
	if at == atMismatch {
		s.cfg.Inbox.OnMismatch = func(ctx context.Context, _ *message.Message) error { return s.call(ctx) }
	}
	s.restart(t)
	if at == atMismatch { // the message with this UUID was another one
		require.NoError(t, s.deliver(), name)
		s.msg.Payload = []byte(name + ", changed")
	}
	s.fails = fails
	return s
}

// restart makes the same stack again, as in another process.
func (s *failingStack) restart(t testing.TB) {
	s.stack = chain(func(msg *message.Message) ([]*message.Message, error) {
		if s.failed && s.at != atHandler && s.at != atPublish {
			t.Errorf("%s failed: the handler is called", s.at)
		}
		produced, err := book(s.h)(msg)
		if s.at == atHandler && err == nil {
			err = s.call(msg.Context())
		}
		if s.at != atPublish {
			produced = nil
		}
		return produced, err
	}, stackFor(t, newOutboxPublisher(t, s.h.seenBy(t, &s.seen)), s.cfg, s.logger)...)
}

func (s *failingStack) call(ctx context.Context) error {
	s.calls++
	if s.failed = s.fails != nil; !s.failed { // also if it panics
		return nil
	}
	err := s.fails(ctx, s.h)
	s.failed = err != nil
	return err
}

// deliver converts a panic to an error, as Watermill's Recoverer does.
func (s *failingStack) deliver() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	msg := s.msg.Copy()
	msg.SetContext(s.ctx)
	_, err = s.stack(msg)
	return err
}

// deadLetters returns the UUIDs of the message's dead letters.
func (s *failingStack) deadLetters(t testing.TB) []string {
	return column[string](t, s.h, "select uuid from outbox where topic = 'dead_letters' and payload = $1",
		[]byte(s.msg.Payload))
}

// outcome delivers the message and describes the results: the ack, the outcome that observers see, the inbox row, the
// failures for which the nack waited, and a dead letter. If the time of a transaction is limited, it may be over before
// the part is called: then the message is delivered again, and waits are left out.
func (s *failingStack) outcome(t testing.TB) string {
	t.Helper()
	deadLetters, calls := len(s.deadLetters(t)), s.calls
	s.waits.all = nil
	err := s.deliver()
	for s.cfg.Tx.Timeout > 0 && s.calls == calls {
		err = s.deliver()
	}
	all := []string{map[bool]string{true: "acked", false: "nacked"}[err == nil], s.seen.last().Outcome.String()}
	if row := inboxRow(t, s.h, s.msg); row != "" {
		all = append(all, row)
	}
	if n := s.waits.all; len(n) > 0 && s.cfg.Tx.Timeout == 0 {
		all = append(all, fmt.Sprint("wait ", n))
	}
	for range len(s.deadLetters(t)) - deadLetters {
		all = append(all, "dead letter")
	}
	applied := 0
	for _, outcome := range s.seen.outcomes() {
		if outcome == observe.Processed {
			applied++
		}
	}
	assert.Equal(t, applied, effects(t, s.h, s.msg), "what a failed handler wrote is rolled back")
	return strings.Join(all, "; ")
}

// TestFailuresAreCounted wherever and however a stack fails: the wait before the nack grows, operators see the attempts
// and the error, a line of the log names the part, and after MaxAttempts the message is dead and has a dead letter. The
// failures are counted in the inbox if the message's key is known and its own, otherwise by the process.
func TestFailuresAreCounted(t *testing.T) {
	h := onPgx(t)
	type failing struct {
		at    string
		fails failure
		row   string // error in the inbox, as a pattern
	}
	cases := map[string]failing{
		"error":                 {atHandler, returning(errHandler), "the handler failed"},
		"panic":                 {atHandler, panics, "the handler panicked"},
		"Classify panics":       {atHandler, returning(errHandler), "the handler failed"},
		"OnBegin":               {atBegin, returning(errHandler), "OnBegin: the handler failed"},
		"OnBegin panics":        {atBegin, panics, "the handler panicked"},
		"OnBegin with bad SQL":  {atBegin, badSQL, "inbox: .*current transaction is aborted.*"},
		"OnBegin in overtime":   {atBegin, overtime, "OnBegin: it exceeded TxConfig.Timeout.*"},
		"Key":                   {atKey, returning(errHandler), ""},
		"Key panics":            {atKey, panics, ""},
		"OnBegin and Key panic": {atBegin + atKey, panics, ""},
		"OnMismatch":            {atMismatch, returning(errHandler), ""},
		"OnMismatch panics":     {atMismatch, panics, ""},
		"OnMismatch overtime":   {atMismatch, overtime, ""},
	}
	for name, err := range unsound() {
		cases[name] = failing{atHandler, returning(err), ".*return nil instead of a nil pointer.*"}
	}
	for name, c := range cases {
		cfg := middleware.StackConfig{}
		if name == "Classify panics" {
			cfg.ErrorHandler.Classify = func(error) outbox.Decision { panic("boom") }
		}
		s := newFailingStack(t, h, name, c.at, c.fails, cfg)
		if strings.Contains(name, "overtime") {
			s.cfg.Tx.Timeout = 100 * time.Millisecond
			s.restart(t)
		}
		row := map[bool]string{true: "; 0 processed"}[c.at == atMismatch] // of the other message
		counted := func(n int) {
			t.Helper()
			if c.row != "" {
				row = fmt.Sprintf("; %d %s", n, c.row)
			}
			wait := map[bool]string{true: fmt.Sprintf(`; wait \[%d\]`, n)}[s.cfg.Tx.Timeout == 0]
			require.Regexp(t, "(?s)^nacked; failed"+row+wait+"$", s.outcome(t), name)
		}
		for n := 1; n <= 3; n++ {
			counted(n)
		}
		said := 0
		for _, line := range s.logger.Captured()[watermill.ErrorLogLevel] {
			if strings.HasPrefix(line.Msg, "handler not called: ") {
				said++
				assert.Contains(t, c.at, strings.Fields(line.Msg)[3], name)
			}
		}
		assert.Equal(t, map[bool]int{false: 1}[c.at == atHandler], said, name)
		if c.row == "" {
			require.Equal(t, "acked; dead"+row+"; dead letter", s.outcome(t), name)
			for len(s.deadLetters(t)) < 2 {
				_ = s.deliver()
			}
			assert.Equal(t, s.deadLetters(t)[0], s.deadLetters(t)[1], "%s: a copy has the same dead letter", name)
			continue
		}
		s.restart(t) // another process has no count of its own
		require.Regexp(t, "(?s)^acked; dead; 4 dead "+c.row+"; dead letter$", s.outcome(t), name)
		require.Regexp(t, "(?s)^acked; duplicate; 4 dead "+c.row+"$", s.outcome(t), name)
		if s.cfg.Tx.Timeout == 0 { // a dead message is not handled, though it could be now
			s.fails = nil
			require.Regexp(t, "(?s)^acked; duplicate; 4 dead "+c.row+"$", s.outcome(t), name)
			s.fails = c.fails
		}
		require.True(t, revived(t, h, "shop/"+name, s.msg.UUID), name)
		counted(1)
		limit := s.cfg.Tx.Timeout
		s.fails, s.cfg.Tx.Timeout = nil, 0
		s.restart(t)
		require.Regexp(t, "(?s)^acked; processed; 1 processed "+c.row+"$", s.outcome(t), name)
		// If nacked, a copy would return forever, with its failures recorded nowhere.
		s.fails, s.cfg.Tx.Timeout = c.fails, limit
		s.restart(t)
		require.Regexp(t, "(?s)^acked; duplicate; 1 processed "+c.row+"$", s.outcome(t), name)
		assert.False(t, revived(t, h, "shop/"+name, s.msg.UUID), "%s: a processed message is not revived", name)
		if name == "OnBegin panics" {
			lines := s.logger.Captured()[watermill.ErrorLogLevel]
			assert.Contains(t, lines[len(lines)-1].Fields["stack"], "middleware_failures_test.go")
		}
		if c.at == atBegin {
			s.msg.Payload = []byte("changed")
			require.Error(t, s.deliver(), "%s: a message with different content is not a copy", name)
		}
	}
}

// TestFailuresOfTheTransactionAreCounted: OnBegin aborts the transaction, or exceeds its time. Each driver reports that
// in its own way.
func TestFailuresOfTheTransactionAreCounted(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		for name, c := range map[string]struct {
			fails   failure
			timeout time.Duration
			row     string // error in the inbox, as a pattern
		}{
			"bad SQL":  {badSQL, 0, "inbox: .*current transaction is aborted.*"},
			"overtime": {overtime, 100 * time.Millisecond, "OnBegin: it exceeded TxConfig.Timeout.*"},
		} {
			s := newFailingStack(t, h, name, atBegin, c.fails, middleware.StackConfig{
				Tx:           middleware.TxConfig{Timeout: c.timeout},
				ErrorHandler: middleware.ErrorHandlerConfig{MaxAttempts: 2},
			})
			assert.Regexp(t, "(?s)^nacked; failed; 1 "+c.row+"$", s.outcome(t), name)
			assert.Regexp(t, "(?s)^acked; dead; 2 dead "+c.row+"; dead letter$", s.outcome(t), name)
		}
	})
}

// TestOutcomesOfErrors whose type decides the outcome of the message. After errors that charge no attempt it lives on
// although only one attempt is allowed.
func TestOutcomesOfErrors(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		errConflict, errInvalid, poison := errors.New("409"), errors.New("422"), outbox.Poison(errHandler)
		for name, c := range map[string]struct {
			at    string
			fails failure
			first string // outcome of the first delivery
			then  string // and of the second
		}{
			"error": {atHandler, returning(errHandler),
				"acked; dead; 1 dead the handler failed; dead letter", "acked; duplicate; 1 dead the handler failed"},
			"processed": {atHandler, returning(outbox.ErrAlreadyProcessed),
				"acked; duplicate; 0 processed", "acked; duplicate; 0 processed"},
			"later, processed": {atHandler, returning(outbox.RetryAfter(outbox.ErrAlreadyProcessed, time.Hour)),
				"acked; duplicate; 0 processed", "acked; duplicate; 0 processed"},
			"Ack of Classify": {atHandler, returning(errConflict),
				"acked; duplicate; 0 processed", "acked; duplicate; 0 processed"},
			"DeadLetter of Classify": {atHandler, returning(errInvalid),
				"acked; dead; 1 dead 422; dead letter", "acked; duplicate; 1 dead 422"},
			"poison": {atHandler, returning(fmt.Errorf("wrapped: %w", poison)),
				"acked; dead; 1 dead wrapped: poison message: the handler failed; dead letter",
				"acked; duplicate; 1 dead wrapped: poison message: the handler failed"},
			"poison, later": {atHandler, returning(outbox.Poison(outbox.RetryAfter(errHandler, time.Hour))),
				"acked; dead; 1 dead poison message: retry after 1h0m0s: the handler failed; dead letter",
				"acked; duplicate; 1 dead poison message: retry after 1h0m0s: the handler failed"},
			"later, poison": {atHandler, returning(outbox.RetryAfter(poison, time.Hour)),
				"acked; dead; 1 dead retry after 1h0m0s: poison message: the handler failed; dead letter",
				"acked; duplicate; 1 dead retry after 1h0m0s: poison message: the handler failed"},
			"poison of OnBegin": {atBegin, returning(poison),
				"acked; dead; 1 dead OnBegin: poison message: the handler failed; dead letter",
				"acked; duplicate; 1 dead OnBegin: poison message: the handler failed"},
			"poison of Key": {atKey, returning(poison), "acked; dead; dead letter", "acked; dead; dead letter"},
			"poison of OnMismatch": {atMismatch, returning(poison),
				"acked; dead; 0 processed; dead letter", "acked; dead; 0 processed; dead letter"},
			"later, negative": {atHandler, returning(outbox.RetryAfter(errHandler, -time.Hour)),
				"nacked; postponed; wait [1]", "nacked; postponed; wait [1]"},
			"other transaction": {atHandler, wrongKind, "nacked; failed; wait [1]", "nacked; failed; wait [2]"},
			"no publish topic":  {atPublish, nil, "nacked; failed; wait [1]", "nacked; failed; wait [2]"},
		} {
			s := newFailingStack(t, h, name, c.at, c.fails, middleware.StackConfig{ErrorHandler: middleware.ErrorHandlerConfig{
				MaxAttempts: 1, Classify: func(err error) outbox.Decision {
					switch {
					case errors.Is(err, errConflict):
						return outbox.Ack
					case errors.Is(err, errInvalid):
						return outbox.DeadLetter
					}
					return outbox.Nack
				},
			}})
			assert.Equal(t, c.first, s.outcome(t), name)
			miswired := strings.HasPrefix(c.first, "nacked; failed")
			if miswired { // the wait grows with each message of the handler
				s.msg = newMessage(name)
			}
			assert.Equal(t, c.then, s.outcome(t), name)
			if miswired {
				lines := s.logger.Captured()[watermill.ErrorLogLevel]
				require.Len(t, lines, 1, "%s: one line", name)
				assert.Contains(t, lines[0].Msg, "handler is wired wrongly", name)
			}
			if name == "poison of OnMismatch" {
				deadLetters := s.deadLetters(t)
				assert.Equal(t, deadLetters[0], deadLetters[1], "a copy has the same dead letter")
				s.msg.Payload = []byte(name + ", changed again")
				require.NoError(t, s.deliver())
				assert.NotEqual(t, deadLetters[0], s.deadLetters(t)[0], "different content has another one")
			}
		}
	})
}

// TestDeadLetterIsAllOrNothing: the dead row and the dead letter are written in one transaction. If the dead letter
// cannot be written, operators see that, and the handler is called less and less often.
func TestDeadLetterIsAllOrNothing(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		h.exec(t, "alter table outbox add constraint no_dead_letters check (topic <> 'dead_letters')")
		s := newFailingStack(t, h, "poison", atHandler, returning(outbox.Poison(errHandler)), middleware.StackConfig{})
		err := s.deliver()
		require.ErrorIs(t, err, errHandler)
		assert.Equal(t, "23514", text.SQLState(err))
		for n := 2; n <= 3; n++ {
			assert.Regexp(t, fmt.Sprintf(
				`^nacked; failed; %d dead letter not written: .*no_dead_letters.*the handler failed; wait \[%d\]$`, n, n),
				s.outcome(t))
		}
		h.exec(t, "alter table outbox drop constraint no_dead_letters")
		assert.Equal(t, "acked; dead; 4 dead poison message: the handler failed; dead letter", s.outcome(t))
		assert.Equal(t, []observe.Outcome{observe.Failed, observe.Failed, observe.Failed, observe.Dead}, s.seen.outcomes())
	})
}

// TestWhatFailsBeforeTheInboxIsForgotten when it succeeds, or when its transaction could not begin through no fault of
// its own.
func TestWhatFailsBeforeTheInboxIsForgotten(t *testing.T) {
	h := onPgx(t)
	s := newFailingStack(t, h, "key", atKey, nil, middleware.StackConfig{
		ErrorHandler: middleware.ErrorHandlerConfig{MaxAttempts: 2},
	})
	for range 3 {
		s.fails = returning(errHandler)
		assert.Regexp(t, `^nacked; failed; (0 processed; )?wait \[1\]$`, s.outcome(t))
		s.fails = nil
		assert.Contains(t, s.outcome(t), "acked")
	}
	h.pool.Close()
	s.waits.all = nil
	for range 3 {
		require.Error(t, s.deliver())
	}
	assert.Equal(t, []int{1, 2, 3}, s.waits.all, "the wait grows, and no message dies of a database outage")
}

// TestWhatFailsWithoutATransactionIsNotCounted: failures because no transaction began do not count later, when the
// message itself fails.
func TestWhatFailsWithoutATransactionIsNotCounted(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		over, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
		defer cancel()
		for at, row := range map[string]string{atBegin: " OnBegin: the handler failed; ", atKey: ""} {
			s := newFailingStack(t, h, at, at, returning(errHandler), middleware.StackConfig{
				ErrorHandler: middleware.ErrorHandlerConfig{MaxAttempts: 2},
			})
			s.ctx = over
			for range 5 {
				require.ErrorIs(t, s.deliver(), core.ErrNotBegun, at)
			}
			assert.Equal(t, []int{1, 2, 3, 4, 5}, s.waits.all, at)
			s.ctx = t.Context()
			first, second := "1"+row, "2 dead"+row
			if row == "" {
				first, second = "", ""
			}
			assert.Equal(t, "nacked; failed; "+first+"wait [6]", s.outcome(t), "%s: the wait grows with all failures", at)
			assert.Equal(t, "acked; dead; "+second+"dead letter", s.outcome(t), at)
		}
	})
}
