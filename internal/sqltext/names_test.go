package sqltext_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestNoPlaceholderIsLeft finds a placeholder that Render does not know.
func TestNoPlaceholderIsLeft(t *testing.T) {
	placeholder := regexp.MustCompile(`\{[a-z_]+\}`)
	all, err := migrations.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		for _, s := range m.Statements() {
			s = sqltext.Tables{Schema: "app"}.Render(s)
			if found := placeholder.FindString(s); found != "" {
				t.Errorf("%04d: %s is left in %s", m.Version, found, s)
			}
		}
	}
	for _, s := range []string{
		sqltext.InsertMarked, sqltext.Fetch, sqltext.Sweep, sqltext.LoadBlocked, sqltext.Pending, sqltext.SettlePublished,
		sqltext.SettleFailed,
		sqltext.ClaimInbox, sqltext.TakeLanes, sqltext.CleanInbox, sqltext.CleanPublished,
		sqltext.ClaimKey, sqltext.ReadAnswer, sqltext.StoreAnswer, sqltext.CleanKeys, sqltext.CountExpiredKeys,
		sqltext.EnqueueMessages, sqltext.ClaimReady, sqltext.ClaimTopics, sqltext.AckMessages, sqltext.CleanQueue,
	} {
		if found := placeholder.FindString((sqltext.Tables{}).Render(s)); found != "" {
			t.Errorf("%s is left in %s", found, s)
		}
	}
}

func TestDefaults(t *testing.T) {
	got := sqltext.Tables{Outbox: "box"}.WithDefaults()
	want := sqltext.Tables{
		Outbox: "box", Lanes: "box_lanes", Forwarders: "box_forwarders", Migrations: "box_migrations", Inbox: "box_inbox",
		Queue: "box_queue", Audit: "box_audit", Idempotency: "box_idempotency",
	}
	if got != want {
		t.Errorf("got %+v", got)
	}
	if inbox := (sqltext.Tables{}).WithDefaults().Inbox; inbox != "inbox" {
		t.Errorf("the inbox of the default outbox is called %q", inbox)
	}
}

func TestLongNames(t *testing.T) {
	longest := sqltext.Tables{Outbox: strings.Repeat("x", 40)}
	if err := longest.Validate(); err != nil {
		t.Error(err)
	}
	if err := longest.WithDefaults().Validate(); err != nil {
		t.Errorf("filled in: %v", err)
	}
	err := sqltext.Tables{Outbox: strings.Repeat("x", 41)}.Validate()
	if err == nil || !strings.Contains(err.Error(), "Outbox") {
		t.Errorf("got %v", err)
	}
	all, err := migrations.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		for _, name := range regexp.MustCompile(`"[^"]*"`).FindAllString(longest.Render(m.Text), -1) {
			if len(name)-2+len("_pkey") > 63 {
				t.Errorf("Postgres would cut %s", name)
			}
		}
	}
}

func TestTableNamesMayNotBeThoseOfIndexes(t *testing.T) {
	all, err := migrations.All()
	if err != nil {
		t.Fatal(err)
	}
	ours := []string{"{outbox_id_seq}", "{queue_id_seq}"}
	for _, m := range all {
		for _, match := range regexp.MustCompile(`CREATE (?:UNIQUE )?INDEX (?:CONCURRENTLY )?(\{[a-z_]+\})`).
			FindAllStringSubmatch(m.Text, -1) {
			ours = append(ours, match[1])
		}
	}
	for _, placeholder := range ours {
		name := strings.Trim(sqltext.Tables{}.Render(placeholder), `"`)
		if err := (sqltext.Tables{Lanes: name}).Validate(); !errors.Is(err, sqltext.ErrBadName) ||
			!strings.Contains(err.Error(), "Lanes") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"outbox_pkey", "inbox_pkey", "outbox_forwarders_pkey"} {
		if err := (sqltext.Tables{Lanes: name}).Validate(); !errors.Is(err, sqltext.ErrBadName) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzTablesAreRefusedOrQuoted(f *testing.F) {
	for _, s := range []string{"outbox", `x"; drop table y; --`, "a'b", "a\x00b", "a$b-c", "{lanes}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		n := sqltext.Tables{Schema: name, Outbox: name}
		if n.Validate() != nil {
			return
		}
		if want := `"` + name + `"."` + name + `"`; name != "" && n.OutboxName() != want {
			t.Errorf("%q is rendered as %s", name, n.OutboxName())
		}
		if strings.ContainsAny(name, "\"'\\;\x00\n {}") {
			t.Errorf("%q was accepted", name)
		}
	})
}
