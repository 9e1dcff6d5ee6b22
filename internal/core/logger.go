package core

import (
	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// RedactingLogger returns a logger that redacts secrets with text.Redact, because errors of drivers and of user code
// may quote connection strings and tokens. A logger that already does so is returned unchanged; nil logs nothing.
func RedactingLogger(logger watermill.LoggerAdapter) watermill.LoggerAdapter {
	switch logger := logger.(type) {
	case nil:
		return watermill.NopLogger{}
	case watermill.NopLogger, redactingLogger:
		return logger
	}
	return redactingLogger{logger}
}

type redactingLogger struct{ to watermill.LoggerAdapter }

// Error passes on the original error if it contains nothing to redact.
func (d redactingLogger) Error(msg string, err error, fields watermill.LogFields) {
	d.to.Error(text.Redact(msg), redacted(err), redactedFields(fields))
}

func (d redactingLogger) Info(msg string, fields watermill.LogFields) {
	d.to.Info(text.Redact(msg), redactedFields(fields))
}

func (d redactingLogger) Debug(msg string, fields watermill.LogFields) {
	d.to.Debug(text.Redact(msg), redactedFields(fields))
}

func (d redactingLogger) Trace(msg string, fields watermill.LogFields) {
	d.to.Trace(text.Redact(msg), redactedFields(fields))
}

func (d redactingLogger) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return redactingLogger{d.to.With(redactedFields(fields))}
}

// redacted returns an error that errors.Is still matches. A user's Error method may panic.
func redacted(err error) (same error) {
	if err = text.SafeError(err); err == nil {
		return nil
	}
	said := err.Error()
	if without := text.Redact(said); without != said {
		return text.Advise(err, "%s", without)
	}
	return err
}

// redactedFields returns a copy if it redacts anything.
func redactedFields(fields watermill.LogFields) watermill.LogFields {
	var changed watermill.LogFields
	for name, value := range fields {
		said, ok := value.(string)
		if err, is := value.(error); is {
			said, ok = text.SafeError(err).Error(), true
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
