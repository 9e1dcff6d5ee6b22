package forwarder

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
)

type deafPublisher struct{ message.Publisher }

// made is an error whose As method returns a PublishError.
type made struct{}

func (made) Error() string { return "made" }
func (made) As(target any) bool {
	judged, ok := target.(**PublishError)
	if ok {
		*judged = &PublishError{Retry, nil}
	}
	return ok
}

func TestVerdictsTravelInErrors(t *testing.T) {
	plain := errors.New("x")
	says := func(v Verdict) error { return &PublishError{v, plain} }
	always := func(v Verdict) func(error) Verdict { return func(error) Verdict { return v } }
	for name, tt := range map[string]struct {
		err      error
		classify func(error) Verdict
		want     Verdict
		blind    bool
	}{
		"plain":                         {plain, nil, Unknown, true},
		"has a verdict":                 {says(Permanent), nil, Permanent, false},
		"wrapped by a decorator":        {fmt.Errorf("metrics: %w", says(Unavailable)), nil, Unavailable, false},
		"one of several":                {errors.Join(plain, says(Retry)), nil, Retry, false},
		"next to a nil error":           {errors.Join((*PublishError)(nil), says(Permanent)), nil, Permanent, false},
		"several: the mildest":          {errors.Join(says(Permanent), says(Unavailable)), nil, Unavailable, false},
		"several, in another order":     {errors.Join(says(Unavailable), says(Retry)), nil, Unavailable, false},
		"several, one within":           {errors.Join(says(Permanent), fmt.Errorf("x: %w", says(Retry))), nil, Retry, false},
		"several, one unknown":          {errors.Join(says(Unknown), says(Permanent)), nil, Permanent, false},
		"the outer one overrules":       {&PublishError{Permanent, says(Unavailable)}, nil, Permanent, false},
		"the outer one is unknown":      {&PublishError{Unknown, says(Unavailable)}, nil, Unavailable, false},
		"made by As":                    {made{}, nil, Retry, false},
		"its verdict is unknown":        {says(Unknown), nil, Unknown, false},
		"poison":                        {fmt.Errorf("x: %w", outbox.Poison(plain)), nil, Permanent, false},
		"Classify rules":                {says(Permanent), always(Retry), Retry, false},
		"Classify leaves it to another": {says(Permanent), always(Unknown), Permanent, false},
		"no verdict at all":             {plain, always(Unknown), Unknown, true},
	} {
		p := newPublishers(deafPublisher{}, Config{Classify: tt.classify})
		if got := p.verdict("orders", tt.err); got != tt.want || p.blind.Load() != tt.blind {
			t.Errorf("%s: %v, blind %v", name, got, p.blind.Load())
		}
	}
	if err := says(Retry); !errors.Is(err, plain) || err.Error() != "x" {
		t.Errorf("%v", err)
	}
	var nobody *publishers
	if nobody.verdict("orders", plain) != Retry {
		t.Error("a nack is the message's fault")
	}
}

func TestAPublishErrorWithoutAnErrorHasAText(t *testing.T) {
	var none *PublishError
	for want, err := range map[string]error{"unknown": none, "unavailable": &PublishError{Verdict: Unavailable}} {
		if err.Error() != want || errors.Unwrap(err) != nil {
			t.Errorf("%q, want %q", err, want)
		}
	}
}

// linked is a publisher that reports whether it is connected, and fails.
type linked struct {
	failing
	connected bool
}

func (l *linked) IsConnected() bool { return l.connected }

func TestAPublisherThatIsNotConnectedBlamesItsBroker(t *testing.T) {
	apart := &linked{failing: failing{err: errors.New("not connected")}}
	at := &linked{failing: failing{err: errors.New("refused")}, connected: true}
	says := &linked{failing: failing{err: &PublishError{Retry, errors.New("y")}}}
	for name, tt := range map[string]struct {
		pub   message.Publisher
		want  Verdict
		blind bool
	}{
		"apart":               {apart, Unavailable, false},
		"decorated":           {decorator{apart, 1}, Unknown, true},
		"connected":           {at, Unknown, false},
		"has another verdict": {says, Retry, false},
		"no connection state": {&failing{err: errors.New("x")}, Unknown, true},
		"classified":          {WithVerdicts(at, func(error) Verdict { return Permanent }), Permanent, false},
		"classified, unknown": {WithVerdicts(apart, func(error) Verdict { return Unknown }), Unavailable, false},
		"classified again":    {WithVerdicts(says, func(error) Verdict { return Unavailable }), Unavailable, false},
	} {
		p := newPublishers(tt.pub, Config{})
		if got := p.verdict("orders", p.publish("orders", nil)); got != tt.want || p.blind.Load() != tt.blind {
			t.Errorf("%s: %v, blind %v", name, got, p.blind.Load())
		}
	}
	rule := newPublishers(apart, Config{Classify: func(error) Verdict { return Permanent }})
	if v := rule.verdict("orders", rule.publish("orders", nil)); v != Permanent {
		t.Errorf("Classify rules: %v", v)
	}
	timeouts := newPublishers(apart, Config{})
	_ = timeouts.publish("orders", nil)
	if v := timeouts.verdict("orders", ErrPublishTimeout); v != Unknown {
		t.Errorf("a timeout does not mean a lost connection: %v", v)
	}
}

// WithVerdicts applies only to its own publisher.
func TestWithVerdictsConcernsOnePublisher(t *testing.T) {
	broken := errors.New("broken")
	webhook, redis := &failing{err: broken}, &failing{err: broken}
	p := newPublishers(webhook, Config{Routes: map[string]message.Publisher{
		"stream": WithVerdicts(redis, func(err error) Verdict {
			if !errors.Is(err, broken) {
				t.Error(err)
			}
			return Unavailable
		}),
	}})
	for topic, want := range map[string]Verdict{"stream": Unavailable, "hook": Unknown} {
		err := p.publish(topic, nil)
		if v := p.verdict(topic, err); v != want || !errors.Is(err, broken) {
			t.Errorf("%s: %v, want %v: %v", topic, v, want, err)
		}
	}
	none := WithVerdicts(&willing{}, func(error) Verdict { panic("no error to judge") })
	if err := none.Publish("stream"); err != nil {
		t.Error(err)
	}
}

// willing accepts all messages.
type willing struct{ message.Publisher }

func (*willing) Publish(string, ...*message.Message) error { return nil }
