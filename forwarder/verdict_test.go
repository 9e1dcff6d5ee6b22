package forwarder

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

type deafPublisher struct{ message.Publisher }

type knowingPublisher struct {
	message.Publisher
	verdict Verdict
}

func (p knowingPublisher) Classify(error) Verdict { return p.verdict }

func TestPublishersAreAskedForTheirVerdicts(t *testing.T) {
	permanent, unavailable := knowingPublisher{verdict: Permanent}, knowingPublisher{verdict: Unavailable}
	routes := func(p message.Publisher) map[string]message.Publisher {
		return map[string]message.Publisher{"routed": p}
	}
	tests := map[string]struct {
		pub          message.Publisher
		cfg          Config
		other, route Verdict
		blind        bool
	}{
		"its own":               {permanent, Config{}, Permanent, Permanent, false},
		"each route its own":    {permanent, Config{Routes: routes(unavailable)}, Permanent, Unavailable, false},
		"nobody knows":          {deafPublisher{}, Config{}, Retry, Retry, true},
		"a route is unknown":    {permanent, Config{Routes: routes(deafPublisher{})}, Permanent, Retry, true},
		"the rest is unknown":   {deafPublisher{}, Config{Routes: routes(unavailable)}, Retry, Unavailable, true},
		"Config.Classify rules": {permanent, Config{Routes: routes(deafPublisher{}), Classify: unavailable.Classify}, Unavailable, Unavailable, false},
	}
	for name, tt := range tests {
		classify, blind := newJudge(tt.pub, tt.cfg)
		if got := classify("other", errors.New("x")); got != tt.other {
			t.Errorf("%s: %v, want %v", name, got, tt.other)
		}
		if got := classify("routed", errors.New("x")); got != tt.route {
			t.Errorf("%s: routed: %v, want %v", name, got, tt.route)
		}
		if blind != tt.blind {
			t.Errorf("%s: blind is %v", name, blind)
		}
	}
}
