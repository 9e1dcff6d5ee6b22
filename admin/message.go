package admin

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Message is a message in one of the tables. Times that do not apply are zero.
type Message struct {
	In Table `json:"in"`
	// ID identifies the message in its table: by its number in the outbox; by the consumer or source, a colon, and the
	// message's id in the others.
	ID       string `json:"id"`
	UUID     string `json:"uuid"` // the id set by its sender
	Topic    string `json:"topic,omitempty"`
	Key      string `json:"key,omitempty"`
	Consumer string `json:"consumer,omitempty"` // see Filter
	State    State  `json:"state"`
	Attempts int    `json:"attempts"` // failed attempts since the last requeue or redrive
	// Crashes counts the attempts in the queue that ended because the lease expired: the process handling the message
	// died, or could not renew the lease.
	Crashes int `json:"crashes,omitempty"`
	// LastError is the text of the last error, up to 1 KiB, with likely secrets replaced by ***; for a discarded
	// message it is the actor and the reason.
	LastError  string    `json:"last_error,omitempty"`
	ErrorGroup string    `json:"error_group,omitempty"` // the ID of its ErrorGroup
	CreatedAt  time.Time `json:"created_at"`            // in the inbox: time of the last requeue or redrive
	DueAt      time.Time `json:"due_at,omitzero"`       // of a message that is ready, delayed or failing
	DeadAt     time.Time `json:"dead_at,omitzero"`
	SettledAt  time.Time `json:"settled_at,omitzero"` // published, processed or discarded
	// Metadata is the message's metadata; nil in the inbox.
	Metadata message.Metadata `json:"metadata,omitempty"`
	// Payload and its size are set only by Get; nil = null, or the role may not read it.
	Payload []byte `json:"payload,omitempty"`
	Bytes   int    `json:"bytes,omitempty"`
}

// List is a page of messages.
type List struct {
	Messages []Message `json:"messages"`
	// Next is the start of the next page, "" at the end. A page may have fewer messages than its limit, or none, and
	// still have a Next.
	Next string `json:"next,omitempty"`
	// Progress is how far the search has come, if there is a Next.
	Progress Progress `json:"progress,omitzero"`
}

// Progress is how far a list or a search has come.
type Progress struct {
	// ID is the Message.ID of the last message read. It may have been deleted since.
	ID string `json:"id,omitempty"`
	// WrittenAt is when that message of the outbox was written; zero for the other tables.
	WrittenAt time.Time `json:"written_at,omitzero"`
	// Share is the share of the outbox searched, from 0 to 1, by ids; 0 if the search is in another order.
	Share float64 `json:"share,omitempty"`
}

// ErrorGroup is messages whose errors differ only in numbers, ids and quoted text.
type ErrorGroup struct {
	ID      string    `json:"id"`      // depends only on Text, in every process and version
	Text    string    `json:"text"`    // the error with placeholders
	Example string    `json:"example"` // the error of the newest message
	Topics  []string  `json:"topics"`  // sorted; for the inbox, the consumers
	Count   Count     `json:"count"`
	First   time.Time `json:"first"` // when the oldest message was written
	Last    time.Time `json:"last"`
}
