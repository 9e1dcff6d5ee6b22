package schema_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/schema"
)

// TestRolesFile compares docs/run/roles.sql with the result of Roles. OUTBOX_UPDATE=1 writes it.
func TestRolesFile(t *testing.T) {
	sql, err := schema.Roles(schema.RolesConfig{})
	if err != nil {
		t.Fatal(err)
	}
	sql = "-- The result of schema.Roles for tables with the default names.\n\n" + sql
	const file = "../docs/run/roles.sql"
	if os.Getenv("OUTBOX_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(sql), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if old, err := os.ReadFile(file); err != nil || string(old) != sql {
		t.Errorf("docs/run/roles.sql differs from schema.Roles (%v): OUTBOX_UPDATE=1 go test "+
			"-run TestRolesFile ./schema", err)
	}
}

func TestRolesNames(t *testing.T) {
	_, err := schema.Roles(schema.RolesConfig{Tables: outbox.Tables{Schema: "shop", Outbox: "box"}, Prefix: "the shop's"})
	if err == nil || !strings.Contains(err.Error(), "Prefix") {
		t.Errorf("got %v", err)
	}
	if _, err := schema.Roles(schema.RolesConfig{Tables: outbox.Tables{Outbox: `x"`}}); err == nil {
		t.Error("a bad name is accepted")
	}
	sql, err := schema.Roles(schema.RolesConfig{Tables: outbox.Tables{Schema: "shop", Outbox: "box"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`GRANT USAGE ON SCHEMA "shop" TO "box_writer", `, `ON "shop"."box" TO "box_reader"`} {
		if !strings.Contains(sql, want) {
			t.Errorf("%s is missing in %s", want, sql)
		}
	}
	if left := regexp.MustCompile(`[<{][a-z_]+[>}]`).FindString(sql); left != "" {
		t.Errorf("%s is left", left)
	}
}
