package cli

import (
	"errors"
	"testing"

	"github.com/spf13/cobra"
)

// TestInFlags: errors name the flags that the user typed, and other names stay.
func TestInFlags(t *testing.T) {
	t.Parallel()
	cmd := &cobra.Command{}
	for _, flag := range []string{
		"id", "payload", "due", "batch", "page", "after", "timeout", "lease-ttl", "kafka", "outbox", "state",
	} {
		cmd.Flags().String(flag, "", "")
	}
	for text, want := range map[string]string{
		"from table x: TableConfig.ID: none":               "from table x: --id: none",
		"TableConfig.Columns.Payload: none":                "--payload: none",
		"TableConfig.Columns.DueAt is no time":             "--due is no time",
		"TableConfig.BatchSize is -1":                      "--batch is -1",
		"WatermillConfig.LockTimeout (10s)":                "--timeout (10s)",
		"TableConfig.Table: there is no table x":           "TABLE: there is no table x",
		"admin: Page.After is not the Next":                "admin: --page is not the Next",
		"admin: Filter.After is in the year 10000":         "admin: --after is in the year 10000",
		"Config.LeaseTTL is 1ns":                           "--lease-ttl is 1ns",
		"kafka: PublisherConfig.Brokers: x":                "kafka: --kafka: x",
		"kafka: PublisherConfig.Configure: --broker-ca":    "kafka: --broker-ca",
		"admin: CleanConfig.OutboxRetention is -1ns":       "admin: --outbox is -1ns",
		`admin: Filter.States has "dead" twice`:            `admin: --state has "dead" twice`,
		"admin: Filter.IDs names 2000":                     "admin: ID names 2000",
		"CleanConfig.QueueRetention, which has no flag":    "CleanConfig.QueueRetention, which has no flag",
		"WatermillConfig.Marshaler must be":                "WatermillConfig.Marshaler must be",
		`ERROR: relation "pageAfter" does not exist`:       `ERROR: relation "pageAfter" does not exist`,
		"of two: TableConfig.ID, TableConfig.Columns.None": "of two: --id, TableConfig.Columns.None",
	} {
		if got := inFlags(cmd, errors.New(text)).Error(); got != want {
			t.Errorf("inFlags(%q) = %q, want %q", text, got, want)
		}
	}
}
