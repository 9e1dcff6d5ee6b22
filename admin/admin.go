package admin

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

var (
	// ErrNotFound is returned by Get for an unknown message.
	//
	// Cure: done messages are deleted after their retention.
	ErrNotFound = errors.New("admin: message not found")

	// ErrEmptyFilter is returned by an act with an empty filter.
	ErrEmptyFilter = errors.New("admin: the filter selects nothing: set a field of Filter, or Filter.All")

	// ErrNoActor is returned by an act without an actor.
	ErrNoActor = errors.New("admin: no actor for the audit log: set Config.Actor, or use Admin.As")

	// ErrNoDeadLetter is returned by Redrive if none of the selected messages still has its dead letter in the outbox.
	//
	// Cause: the dead letters were deleted after the retention of the outbox.
	// Cure: or requeue the messages and have their sender send them again.
	ErrNoDeadLetter = errors.New("admin: the dead letters are no longer in the outbox: publish them again from the " +
		"dead-letter topic of the broker")

	// ErrInvalid is wrapped by errors about an invalid field of a filter, page or act.
	//
	// Cure: correct the field that the error names.
	ErrInvalid = errors.New("admin: invalid")
)

// invalidError describes the invalid field.
type invalidError string

func (e invalidError) Error() string { return string(e) }

// Is makes errors.Is find ErrInvalid, whose text would add nothing to the message.
func (invalidError) Is(target error) bool { return target == ErrInvalid }

func invalid(format string, args ...any) error { return invalidError(fmt.Sprintf(format, args...)) }

// Config configures New.
type Config struct {
	// Actor is the name in the audit log; default none. Admin.As changes it. An act without an actor returns ErrNoActor.
	Actor string
	// QueryTimeout bounds each statement; default 10 s, -1 no limit.
	QueryTimeout time.Duration
	// BatchSize is the number of messages that an act changes in one transaction; default 500, at most 10,000. Lower it
	// if acts hold locks for too long.
	BatchSize int
}

func (c *Config) setDefaults() {
	if c.QueryTimeout == 0 {
		c.QueryTimeout = 10 * time.Second
	}
	if c.BatchSize == 0 {
		c.BatchSize = 500
	}
}

func (c Config) validate() error {
	switch {
	case len(c.Actor) > text.MaxActorBytes || !text.Storable(c.Actor):
		return fmt.Errorf("Config.Actor must be UTF-8 without NUL, of at most %d bytes", text.MaxActorBytes)
	case c.QueryTimeout < -1:
		return fmt.Errorf("Config.QueryTimeout is %s: use -1 for none", c.QueryTimeout)
	case c.BatchSize < 0 || c.BatchSize > maxBatch:
		return fmt.Errorf("Config.BatchSize is %d: use 1 to %d, or 0 for the default", c.BatchSize, maxBatch)
	}
	return nil
}

const maxBatch = 10_000

// Admin reads and repairs the tables of a handle. It is safe for concurrent use and needs no closing.
type Admin struct {
	db     *core.DB
	cfg    Config
	logger watermill.LoggerAdapter
}

// New makes an Admin. It does no I/O. It returns outbox.ErrNoDB or an error that names an invalid field. If logger is
// nil, the logger of db is used. Each act is logged at info level.
func New(db *outbox.DB, cfg Config, logger watermill.LoggerAdapter) (*Admin, error) {
	cfg.setDefaults()
	own := (*core.DB)(db)
	if err := errors.Join(own.Check(), cfg.validate()); err != nil {
		return nil, err
	}
	return &Admin{db: own, cfg: cfg, logger: own.Logger(logger)}, nil
}

// As returns an Admin whose acts have another actor in the audit log, for programs with several operators.
func (a *Admin) As(actor string) *Admin {
	of := *a
	of.cfg.Actor = actor
	return &of
}
