package admin

import (
	"fmt"
	"slices"

	"github.com/millrace-go/watermill-outbox/broker"
)

// Severity is how bad a Finding is.
type Severity = broker.Severity

// The severities, as package broker defines them.
const (
	Info     = broker.Info
	Warning  = broker.Warning
	Critical = broker.Critical
)

// Finding is a problem that Doctor found.
type Finding struct {
	Check    string   `json:"check"` // stable name of the check, in lower case
	Severity Severity `json:"severity"`
	Title    string   `json:"title"` // short description, the same for all findings of a Check
	Evidence string   `json:"evidence"`
	// what to do; commands are in parentheses, and a statement that does it comes last, after a colon
	Cure string `json:"cure"`
	// In is the table of the messages concerned; Outbox also if there are none.
	In Table `json:"in"`
	// Subject is the affected topic, consumer or forwarder; empty for none or several.
	Subject string `json:"subject,omitempty"`
	// Alerts are the alerts of dashboards/alerts.yaml that fire for it.
	Alerts []string `json:"alerts,omitempty"`
}

// String returns the finding as one line, or more if the cure is a long statement.
func (f Finding) String() string {
	return fmt.Sprintf("%s %s: %s. %s", f.Severity, f.Check, f.Evidence, f.Cure)
}

// sortFindings puts the worst first.
func sortFindings(list []Finding) {
	slices.SortStableFunc(list, func(x, y Finding) int { return int(y.Severity - x.Severity) })
}

// kind holds what all findings of one name share.
type kind struct {
	title  string
	alerts []string
}

// kinds lists all findings by name. Each has a row in docs/run/runbook.md.
var kinds = map[string]kind{
	"schema":                {title: "the tables do not match the code"},
	"privileges":            {title: "a role lacks a right"},
	"commit_waits":          {title: "commits wait for a standby"},
	"unique_index":          {title: "a unique index may refuse messages"},
	"inherits":              {title: "a table inherits from an outbox table"},
	"detached":              {title: "a partition is detached"},
	"sequence":              {title: "ids are running out"},
	"elsewhere":             {title: "messages wait in another schema"},
	"table_lock":            {title: "a table is locked"},
	"idle_transaction":      {title: "an idle transaction holds locks"},
	"long_transaction":      {title: "a transaction has run for long"},
	"prepared_transactions": {title: "a prepared transaction was forgotten"},
	"forwarders":            {title: "no forwarder is running", alerts: []string{"OutboxNoForwarder"}},
	"forwarder_vanished":    {title: "a forwarder vanished"},
	"forwarder_waits":       {title: "a forwarder waits for others to stop"},
	"consumers":             {title: "consumers share a name"},
	"classify":              {title: "errors of a publisher are not classified"},
	"pool":                  {title: "a connection pool is too small"},
	"timeouts":              {title: "a timeout is unsafe"},
	"retention":             {title: "a retention is wrong or not applied"},
	"topic_unread":          {title: "no forwarder publishes a topic", alerts: []string{"OutboxTopicUnread"}},
	"topic_paused": {title: "a topic is paused",
		alerts: []string{"OutboxTopicPaused", "OutboxPauseForgotten"}},
	"topic_unavailable": {title: "the broker is unavailable", alerts: []string{"OutboxTopicUnavailable"}},
	"backlog":           {title: "messages are published late", alerts: []string{"OutboxMessagesLate"}},
	"failing": {title: "messages keep failing",
		alerts: []string{"OutboxMessagesFailing", "InboxMessagesFailing", "QueueMessagesFailing"}},
	"dead": {title: "messages are dead",
		alerts: []string{"OutboxMessagesDead", "InboxMessagesDead", "QueueMessagesDead"}},
	"dead_discarded":    {title: "dead messages were discarded because of their age"},
	"queue_abandoned":   {title: "queue messages are abandoned"},
	"queue_waits":       {title: "queue messages are handled late", alerts: []string{"QueueMessagesLate"}},
	"queue_unhandled":   {title: "a queue topic has no handler", alerts: []string{"QueueTopicUnhandled"}},
	"queue_crashes":     {title: "a message may crash its handler's process"},
	"partition_blocked": {title: "a partition is blocked by a message", alerts: []string{"PartitionBlocked"}},
	"inbox_retention":   {title: "the inbox keeps less than the broker"},
	"handler_pool":      {title: "handlers wait for connections"},
	"vacuum":            {title: "dead rows are not removed"},
	"statement_timeout": {title: "a role has a short statement_timeout"},
	"listen":            {title: "notifications do not arrive"},
	"broker":            {title: "the broker may lose messages"},

	"partitions_ahead": {title: "partitions for new ids are running out",
		alerts: []string{"OutboxFewPartitionsAhead", "OutboxNoPartitionAhead"}},
	"partitions_held": {title: "messages keep partitions from being dropped"},
	"partitions_due":  {title: "nothing drops old partitions"},
	"partitions_many": {title: "the outbox has too many partitions"},

	// these exist only for checks that failed
	"partitions": {title: "partitions could not be checked"},
	"obstacles":  {title: "obstacles could not be checked"},
	"sessions":   {title: "sessions could not be checked"},
	"topics":     {title: "topics could not be checked"},
	"roles":      {title: "roles could not be checked"},
	"queue":      {title: "the queue could not be checked"},
}
