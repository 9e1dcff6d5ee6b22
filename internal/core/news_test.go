package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestNewsGoThroughANotification(t *testing.T) {
	var many []string
	for i := range maxNewsTopics + 1 {
		many = append(many, fmt.Sprint(i))
	}
	for _, n := range []News{
		OutboxNews, AllNews, QueueNews("a"), QueueNews(), QueueNews("b", "a", "b"), OutboxNews.and(QueueNews(`a "b" ü`)),
		QueueNews(many...),
		QueueNews(strings.Repeat("x", maxNewsBytes+1)), QueueNews(strings.Repeat("\x01", maxNewsBytes)),
	} {
		payload := n.payload("me")
		sender, got := newsOf(payload)
		if sender != "me" || got.Outbox != n.Outbox || got.Queue != n.Queue || len(payload) >= 8000 {
			t.Errorf("%+v is %q, which is %+v by %q", n, payload, got, sender)
		}
		if len(got.Topics) > 0 && !slices.Equal(got.Topics, n.Topics) {
			t.Errorf("the topics %q are %q", n.Topics, got.Topics)
		}
	}
	for _, payload := range []string{"", "me", "me {}", "me nonsense", "9f"} {
		if _, n := newsOf(payload); !n.Outbox || !n.Queue || n.Topics != nil {
			t.Errorf("%q is %+v", payload, n)
		}
	}
}

func TestNewsConcernWhoHasTheTopic(t *testing.T) {
	for _, test := range []struct {
		news News
		only []string
		want bool
	}{
		{OutboxNews, nil, false}, {OutboxNews, []string{"a"}, false}, {AllNews, []string{"a"}, true},
		{QueueNews("a"), nil, true}, {QueueNews("a"), []string{"a"}, true}, {QueueNews("a"), []string{"b"}, false},
		{QueueNews("a").and(QueueNews("b")), []string{"b"}, true}, {QueueNews("a").and(QueueNews()), []string{"c"}, true},
		{QueueNews("a").and(OutboxNews), []string{"a"}, true}, {OutboxNews.and(QueueNews("a")), []string{"b"}, false},
		{OutboxNews.and(OutboxNews), nil, false}, {News{}, nil, false},
	} {
		if got := test.news.Concerns(test.only); got != test.want {
			t.Errorf("%+v concerns %q: %v", test.news, test.only, got)
		}
	}
}
