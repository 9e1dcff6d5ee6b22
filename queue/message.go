package queue

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// ID identifies a message by its sender and the sender's ID for it. Both have 1 to 255 characters and are
// case-sensitive.
type ID struct {
	Source    string // the sender, such as "stripe"
	MessageID string // unique within the source
}

// Owner identifies the holder of a lease: a process, or a part of one. The zero Owner is invalid.
type Owner uuid.UUID

// NewOwner returns a unique Owner.
func NewOwner() Owner { return Owner(uuid.New()) }

// String returns the owner as stored in the table.
func (o Owner) String() string { return uuid.UUID(o).String() }

// Item is a message to store.
type Item struct {
	ID
	// Topic chooses the handler. It has 1 to 255 characters.
	Topic string
	// Key is for handlers and for you; it gives no order. At most 1024 bytes.
	Key string
	// Payload is any bytes, or empty.
	Payload []byte
	// Metadata must be valid UTF-8 without NUL, and at most 1 MiB as JSON.
	Metadata message.Metadata
	// Hash identifies the content, normally SHA256(Payload), to tell a duplicate from a different message with the same
	// ID. It may be empty.
	Hash []byte
	// DueAt is when the message may be handled; zero or past: immediately.
	DueAt time.Time
	// ExpiresAt is when a message that was not handled expires; zero: never. An expired message is not handled: a process
	// that handles its topic, or Store.ReapExpired, marks it dead.
	ExpiresAt time.Time

	delay time.Duration // replaces DueAt, and counts on the database's clock
}

// State is the state of a message.
type State string

// The states of a message.
const (
	Seen       State = "seen"       // it was looked up but is not stored
	Processing State = "processing" // it is stored, and waits for a handler or is being handled
	Done       State = "done"       // it was handled; its duplicates are known
	Dead       State = "dead"       // it failed for good, or expired
)

// Message is a stored message.
type Message struct {
	Item
	// DB is the name of its database.
	DB    string
	State State
	// Attempts is the number of failed attempts, including those of processes that died; 0 during the first attempt.
	Attempts int
	// FirstSeenAt and LastSeenAt are when it was first and last stored, by the database's clock. Duplicates that arrive
	// while the message is being handled do not change LastSeenAt.
	FirstSeenAt, LastSeenAt time.Time
	// LastError is the error of the last attempt, at most 1 KiB.
	LastError string
}

// EnqueueResult is the outcome of storing an Item.
type EnqueueResult struct {
	ID     ID
	Result StoreResult
	// Mismatch is set if the message was known with another hash, which means other content.
	Mismatch bool
}

// notStored returns an error for a message whose new content was discarded before it was handled: its sender must
// repeat it.
func (r EnqueueResult) notStored() error {
	if r.Result == Busy && r.Mismatch {
		return fmt.Errorf("store message %q from %q: %w", r.ID.MessageID, r.ID.Source, errOtherContent)
	}
	return nil
}

// Cause: a handler has the message.
// Cure: send it again later.
var errOtherContent = errors.New("it is being handled with different content: the new content is not stored: send it " +
	"again later")

// StoreResult is the outcome of storing an Item.
type StoreResult int

// The values of StoreResult. More may be added.
const (
	New         StoreResult = iota // it is stored for the first time
	Updated                        // it was known and not yet handled, and now has the new content
	AlreadyDone                    // it was handled before; nothing changed
	Busy                           // an owner has claimed it and is handling it; nothing changed
)

// String returns the name of the result.
func (r StoreResult) String() string {
	switch r {
	case New:
		return "new"
	case Updated:
		return "updated"
	case AlreadyDone:
		return "already done"
	case Busy:
		return "busy"
	}
	return "unknown"
}

// SHA256 returns the hash of a payload, for Item.Hash and AlreadyProcessed. The hash of a nil payload is a single zero
// byte.
func SHA256(payload []byte) []byte { return core.PayloadHash(payload) }

// Claim selects the messages to take and for how long.
type Claim struct {
	Owner Owner
	// LeaseTTL is how long the messages are kept from others, at least a second.
	LeaseTTL time.Duration
	// Limit is the largest number of messages to take, 1 to 10,000.
	Limit int
	// Topics are the topics of messages to take; none means all.
	Topics []string
	// MaxBytes bounds the sum of their payloads, at least 1; default 64 MiB. The first message is taken whatever its size.
	MaxBytes int
}
