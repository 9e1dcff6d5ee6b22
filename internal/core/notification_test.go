package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestNotificationsArriveAsTheyWereSent(t *testing.T) {
	var many []string
	for i := range maxNotificationTopics + 1 {
		many = append(many, fmt.Sprint(i))
	}
	for _, n := range []Notification{
		OutboxNotification, AllNotification, QueueNotification("a"), QueueNotification(), QueueNotification("b", "a", "b"),
		OutboxNotification.and(QueueNotification(`a "b" ü`)),
		QueueNotification(many...),
		QueueNotification(strings.Repeat("x", maxNotificationBytes+1)),
		QueueNotification(strings.Repeat("\x01", maxNotificationBytes)),
	} {
		payload := n.payload("me")
		sender, got := parseNotification(payload)
		if sender != "me" || got.Outbox != n.Outbox || got.Queue != n.Queue || len(payload) >= 8000 {
			t.Errorf("%+v is %q, which is %+v by %q", n, payload, got, sender)
		}
		if len(got.Topics) > 0 && !slices.Equal(got.Topics, n.Topics) {
			t.Errorf("the topics %q are %q", n.Topics, got.Topics)
		}
	}
	for _, payload := range []string{"", "me", "me {}", "me nonsense", "9f"} {
		if _, n := parseNotification(payload); !n.Outbox || !n.Queue || n.Topics != nil {
			t.Errorf("%q is %+v", payload, n)
		}
	}
}

func TestNotificationsConcernWhoHasTheTopic(t *testing.T) {
	for _, test := range []struct {
		n    Notification
		only []string
		want bool
	}{
		{OutboxNotification, nil, false}, {OutboxNotification, []string{"a"}, false}, {AllNotification, []string{"a"}, true},
		{QueueNotification("a"), nil, true}, {QueueNotification("a"), []string{"a"}, true},
		{QueueNotification("a"), []string{"b"}, false},
		{QueueNotification("a").and(QueueNotification("b")), []string{"b"}, true},
		{QueueNotification("a").and(QueueNotification()), []string{"c"}, true},
		{QueueNotification("a").and(OutboxNotification), []string{"a"}, true},
		{OutboxNotification.and(QueueNotification("a")), []string{"b"}, false},
		{OutboxNotification.and(OutboxNotification), nil, false}, {Notification{}, nil, false},
	} {
		if got := test.n.Concerns(test.only); got != test.want {
			t.Errorf("%+v concerns %q: %v", test.n, test.only, got)
		}
	}
}
