package admin

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Message is a message in one of the tables. Times that do not apply are zero.
type Message struct {
	In Table `json:"in"`
	// ID names the message in its table: its number in the outbox; the consumer or source, a colon, and the message's id
	// in the others.
	ID       string `json:"id"`
	UUID     string `json:"uuid"` // the id that its sender gave it
	Topic    string `json:"topic,omitempty"`
	Key      string `json:"key,omitempty"`
	Consumer string `json:"consumer,omitempty"` // as in Filter
	State    State  `json:"state"`
	Attempts int    `json:"attempts"` // failed ones, since the last requeue or redrive
	// Crashes are those of the attempts in the queue that ended because the lease expired: a process that handled it died,
	// or could not renew.
	Crashes int `json:"crashes,omitempty"`
	// LastError is the text of the last error, up to 1 KiB, with what looks like a secret as ***; of a discarded message
	// it is the actor and the reason.
	LastError  string    `json:"last_error,omitempty"`
	ErrorGroup string    `json:"error_group,omitempty"` // the ID of its ErrorGroup
	CreatedAt  time.Time `json:"created_at"`            // in the inbox since the last requeue or redrive
	DueAt      time.Time `json:"due_at,omitzero"`
	DeadAt     time.Time `json:"dead_at,omitzero"`
	SettledAt  time.Time `json:"settled_at,omitzero"` // published, processed or discarded
	// Metadata is what the message carries; the inbox has none.
	Metadata message.Metadata `json:"metadata,omitempty"`
	// Payload and its size are from Get alone; nil = null, or the role may not read it.
	Payload []byte `json:"payload,omitempty"`
	Bytes   int    `json:"bytes,omitempty"`
}

// Since returns when the message came into its state, as far as the table shows: when it was settled, died, or was
// written.
func (m Message) Since() time.Time {
	switch {
	case !m.SettledAt.IsZero():
		return m.SettledAt
	case m.State == Dead && !m.DeadAt.IsZero():
		return m.DeadAt
	}
	return m.CreatedAt
}

// List is a page of messages.
type List struct {
	Messages []Message `json:"messages"`
	// Next is the start of the next page, "" at the end. A page may have fewer messages than its limit, or none, and a
	// Next.
	Next string `json:"next,omitempty"`
	// Progress is how far the search has come, if there is a Next.
	Progress Progress `json:"progress,omitzero"`
}

// Progress is how far a list or a search has come.
type Progress struct {
	// ID is the last message that was looked at, as Message.ID has it. It need not be there any more.
	ID string `json:"id,omitempty"`
	// WrittenAt is when that message of the outbox was written; zero for the other tables.
	WrittenAt time.Time `json:"written_at,omitzero"`
	// Share is how much of the outbox that is, from 0 to 1, by its ids; 0 where the order is another one.
	Share float64 `json:"share,omitempty"`
}

// ErrorGroup is messages whose errors differ only in numbers, ids and quoted text.
type ErrorGroup struct {
	ID      string    `json:"id"`      // the same everywhere and always for the same Text
	Text    string    `json:"text"`    // the error with placeholders
	Example string    `json:"example"` // the error of the newest message
	Topics  []string  `json:"topics"`  // sorted; for the inbox the consumers
	Count   Count     `json:"count"`
	First   time.Time `json:"first"` // when the oldest of the messages was written
	Last    time.Time `json:"last"`
}
