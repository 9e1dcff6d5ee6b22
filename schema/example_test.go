package schema_test

import (
	"fmt"
	"strings"

	"github.com/millrace-go/watermill-outbox/schema"
)

// The folder of goose has 57 files of the application's own.
func ExampleFiles() {
	files, err := schema.Files(schema.FilesConfig{
		Format:  schema.Goose,
		Tables:  schema.Names{Schema: "shop"},
		StartAt: 58,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range files {
		first, _, _ := strings.Cut(f.Content, ";")
		fmt.Println(f.Name)
		fmt.Println(first)
	}
	// Output:
	// 0058_watermill_outbox_and_inbox.sql
	// -- +goose Up
	// CREATE SCHEMA IF NOT EXISTS "shop"
}

func ExampleNames() {
	for _, names := range []schema.Names{{}, {Schema: "shop", Outbox: "events"}, {Outbox: "drop table x"}} {
		if err := names.Validate(); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(names.OutboxName(), names.WithDefaults().Inbox)
	}
	// Output:
	// "outbox" inbox
	// "shop"."events" events_inbox
	// bad table name: Outbox is "drop table x"; use letters, digits, _, $ and -, at most 40
}
