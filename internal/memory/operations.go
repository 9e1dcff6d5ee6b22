package memory

import (
	"context"
	"sync"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// operation is what stands for a statement. It is called under mu.
type operation struct {
	run   func(c *call) (result, error)
	reads bool // and changes nothing
}

// call is one of an operation.
type call struct {
	ctx  context.Context
	db   *Database
	tx   *Tx
	args []any
	at   time.Time // when it began
}

// result is the rows of a query, or how many a statement has touched.
type result struct {
	rows    [][]any
	touched int64
}

// operations are by the text of their statements.
var operations = sync.OnceValue(func() map[string]operation {
	rendered := map[string]operation{}
	for text, run := range map[string]func(*call) (result, error){
		sqltext.InsertMessages: insertMessages,

		sqltext.ClaimInbox:    claimInbox,
		sqltext.ClaimInboxes:  claimInboxes,
		sqltext.UnclaimInbox:  nothing,
		sqltext.FailInbox:     failInbox,
		sqltext.InboxFailures: inboxFailures,
		sqltext.BuryInbox:     buryInbox,

		sqltext.ClaimKey:    claimKey,
		sqltext.StoreAnswer: storeAnswer,

		sqltext.EnqueueMessages: enqueueMessages,
		sqltext.SeeMessage:      seeMessage,
		sqltext.MarkProcessing:  markProcessing,
		sqltext.MarkProcessed:   markProcessed,
		sqltext.MarkDead:        markDead,
		sqltext.ClaimReady:      claimReady,
		sqltext.ClaimTopics:     claimTopics,
		sqltext.ClaimPages:      claimTopics,
		sqltext.ClaimExpired:    claimExpired,
		sqltext.ReleaseStrays:   releaseStrays,
		sqltext.RenewLeases:     renewLeases,
		sqltext.AckMessage:      ackMessages,
		sqltext.AckBatch:        ackBatch,
		sqltext.AckMessages:     ackMessages,
		sqltext.UnackMessage:    nothing,
		sqltext.AbandonMessages: abandonMessages,
		sqltext.FailMessages:    failMessages,
		sqltext.HoldMessages:    holdMessages,
		sqltext.ReleaseMessages: releaseMessages,
		sqltext.ReapLeases:      reapLeases,
		sqltext.ExpireMessages:  expireMessages,
		sqltext.CleanQueue:      cleanQueue,
	} {
		rendered[sqltext.Tables{}.Render(text)] = operation{run: run}
	}
	for text, run := range map[string]func(*call) (result, error){
		sqltext.LastMessage:  lastMessage,
		sqltext.MessagesPast: messagesPast,
		sqltext.InboxHash:    inboxHash,
		sqltext.ReadAnswer:   readAnswer,
		sqltext.GetMessage:   getMessage,
		sqltext.StillHeld:    stillHeld,
		sqltext.RowTriggers:  func(*call) (result, error) { return result{rows: [][]any{{false}}}, nil },
	} {
		rendered[sqltext.Tables{}.Render(text)] = operation{run: run, reads: true}
	}
	return rendered
})

// nothing is for what takes back a commit of the handler's own. Here a handler cannot commit, so there is nothing to
// take back.
func nothing(*call) (result, error) { return result{}, nil }

// arg is an argument, or the zero value for NULL.
func arg[T any](c *call, i int) T {
	v, _ := c.args[i-1].(T)
	return v
}

// number is an argument that may be any integer.
func (c *call) number(i int) int64 {
	switch v := c.args[i-1].(type) {
	case int:
		return int64(v)
	case int64:
		return v
	}
	return 0
}

// after is a moment so many seconds from another, as far as there are such moments.
func after(at time.Time, seconds float64) time.Time {
	const century = 100 * 365 * 24 * 3600
	return at.Add(time.Duration(min(max(seconds, -century), century) * float64(time.Second)).Round(time.Microsecond))
}

// moment reads RFC 3339; the zero time is NULL.
func moment(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	return at.Round(time.Microsecond).Local(), err
}

// orNull is how a time leaves the database.
func orNull(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return at
}
