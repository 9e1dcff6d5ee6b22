package core

import (
	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Discreet returns a logger that leaves secrets out, see text.Redact: errors of drivers and of users' code quote
// connection strings and tokens. What does so already is returned as it is. Nil logs nothing.
func Discreet(logger watermill.LoggerAdapter) watermill.LoggerAdapter {
	switch logger := logger.(type) {
	case nil:
		return watermill.NopLogger{}
	case watermill.NopLogger, discreet:
		return logger
	}
	return discreet{logger}
}

type discreet struct{ to watermill.LoggerAdapter }

// Error hands on the error itself if there is nothing to redact.
func (d discreet) Error(msg string, err error, fields watermill.LogFields) {
	d.to.Error(text.Redact(msg), redacted(err), redactedFields(fields))
}

func (d discreet) Info(msg string, fields watermill.LogFields) {
	d.to.Info(text.Redact(msg), redactedFields(fields))
}

func (d discreet) Debug(msg string, fields watermill.LogFields) {
	d.to.Debug(text.Redact(msg), redactedFields(fields))
}

func (d discreet) Trace(msg string, fields watermill.LogFields) {
	d.to.Trace(text.Redact(msg), redactedFields(fields))
}

func (d discreet) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return discreet{d.to.With(redactedFields(fields))}
}

// redacted keeps what an error is to errors.Is. One of the user's may panic when it is asked for its text.
func redacted(err error) (same error) {
	if err = text.Sound(err); err == nil {
		return nil
	}
	said := err.Error()
	if without := text.Redact(said); without != said {
		return text.Advise(err, "%s", without)
	}
	return err
}

// redactedFields is a copy if anything is redacted.
func redactedFields(fields watermill.LogFields) watermill.LogFields {
	var changed watermill.LogFields
	for name, value := range fields {
		said, ok := value.(string)
		if err, is := value.(error); is {
			said, ok = text.Sound(err).Error(), true
		}
		if !ok {
			continue
		}
		if without := text.Redact(said); without != said {
			if changed == nil {
				changed = fields.Copy()
			}
			changed[name] = without
		}
	}
	if changed == nil {
		return fields
	}
	return changed
}
