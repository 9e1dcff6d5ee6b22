package cli

import (
	"errors"
	"regexp"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

// fields matches the names of invalid fields in errors of our packages: fields of a Config, a Filter, a Page or an
// Action.
var fields = regexp.MustCompile(`\b(?:[A-Z]\w*)?(?:Config|Filter|Page|Action)(?:\.[A-Z]\w*)+`)

// flagOf lists the flags or arguments that are not named after their fields.
var flagOf = map[string]string{
	"TableConfig.Table": "TABLE", "Filter.IDs": "ID", "States": "--state",
	"Page.After": "--page", "BatchSize": "--batch", "DueAt": "--due", "LockTimeout": "--timeout", "Brokers": "--kafka",
	"URL":           "--nats",
	"DisableListen": "--no-listen", "OutboxRetention": "--outbox", "InboxRetention": "--inbox",
	"QueueRetention": "--queue",
}

// inFlags replaces the names of fields in an error by the flags that the user typed.
func inFlags(cmd *cobra.Command, err error) error {
	text := strings.NewReplacer("PublisherConfig.Configure: ", "", "TopicReaderConfig.Configure: ", "").Replace(
		err.Error())
	return errors.New(fields.ReplaceAllStringFunc(text, func(field string) string {
		name := field[strings.LastIndexByte(field, '.')+1:]
		if flag := kebab(name); cmd.Flags().Lookup(flag) != nil && flagOf[field] == "" {
			return "--" + flag
		}
		for _, known := range []string{flagOf[field], flagOf[name]} {
			if flag, ok := strings.CutPrefix(known, "--"); known != "" && (!ok || cmd.Flags().Lookup(flag) != nil) {
				return known
			}
		}
		return field
	}))
}

// kebab converts a field name to a flag name: LeaseTTL becomes lease-ttl.
func kebab(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 && !unicode.IsUpper(rune(name[i-1])) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
