package schema_test

import (
	"fmt"
	"strings"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/schema"
)

// The application's goose folder has 57 files of its own.
func ExampleFiles() {
	files, err := schema.Files(schema.FilesConfig{
		Format:  schema.Goose,
		Tables:  outbox.Tables{Schema: "shop"},
		StartAt: 58,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range files {
		first, _, _ := strings.Cut(f.Content, ";")
		first, _, _ = strings.Cut(first, " (")
		fmt.Println(f.Name)
		fmt.Println(first)
	}
	// Output:
	// 0058_watermill_outbox_and_inbox.sql
	// -- +goose Up
	// CREATE SCHEMA IF NOT EXISTS "shop"
	// 0059_watermill_queue_and_idempotency.sql
	// -- +goose Up
	// CREATE SEQUENCE "shop"."inbox_queue_id_seq" AS bigint INCREMENT 1 CACHE 1 NO CYCLE
}
