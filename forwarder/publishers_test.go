package forwarder

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// decorator has the decorated publisher in a field, as Watermill's decorators do.
type decorator struct {
	message.Publisher
	more int
}

type uncomparable struct {
	message.Publisher
	list []int
}

func TestPublishersAreNumbered(t *testing.T) {
	one, other := &decorator{}, &decorator{}
	p := newPublishers(one, Config{Routes: map[string]message.Publisher{
		"same": one, "other": other, "another": other, "list": uncomparable{one, nil},
	}})
	if p.number("same") != 0 || p.number("any") != 0 || p.number("other") != p.number("another") || len(p.all) != 3 {
		t.Errorf("%v", p.routes)
	}
	if n := p.number("list"); n == 0 || n == p.number("other") {
		t.Errorf("%v", p.routes)
	}
}

// failing always returns an error.
type failing struct {
	message.Publisher
	err error
}

func (f failing) Publish(string, ...*message.Message) error { return f.err }

func TestATimeOutIsNotChargedToMessagesOfAPublisherThatKnowsItsErrors(t *testing.T) {
	knows, not := &failing{err: &PublishError{Unavailable, errors.New("x")}}, &failing{err: errors.New("y")}
	p := newPublishers(knows, Config{Routes: map[string]message.Publisher{"not": not}})
	timeout := errors.Join(ErrPublishTimeout)
	if v := p.verdict("knows", timeout); v != Unknown {
		t.Errorf("before its first verdict: %v", v)
	}
	for _, topic := range []string{"knows", "not"} {
		if err := p.publish(topic, nil); err == nil {
			t.Error("no error")
		}
	}
	if v := p.verdict("knows", timeout); v != Unavailable {
		t.Errorf("a publisher with verdicts: %v", v)
	}
	if v := p.verdict("not", timeout); v != Unknown {
		t.Errorf("another: %v", v)
	}
}
