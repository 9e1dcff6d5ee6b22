package core

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
)

type said struct {
	watermill.NopLogger
	errs  []error
	lines []string
}

func (s *said) Error(msg string, err error, fields watermill.LogFields) {
	s.errs, s.lines = append(s.errs, err), append(s.lines, fmt.Sprint(msg, err, fields))
}
func (s *said) Info(msg string, fields watermill.LogFields) {
	s.lines = append(s.lines, fmt.Sprint(msg, fields))
}
func (s *said) With(watermill.LogFields) watermill.LoggerAdapter { return s }

// TestDiscreetLogsNoSecrets: text that looks like a secret is removed from messages, errors and fields; everything else
// is unchanged.
func TestDiscreetLogsNoSecrets(t *testing.T) {
	t.Parallel()
	var log said
	logger := RedactingLogger(RedactingLogger(&log)).With(watermill.LogFields{"db": "d"})
	secret, plain := errors.New("dial nats://ann:s3cr3t@mq: refused"), errors.New("refused")
	fields := watermill.LogFields{"err": secret, "dsn": "password=s3cr3t", "n": 7}
	logger.Error("token=s3cr3t", fmt.Errorf("publish: %w", secret), fields)
	logger.Info("token=s3cr3t", fields)
	logger.Error("none", nil, nil)
	logger.Error("plain", plain, watermill.LogFields{"err": plain})
	if all := strings.Join(log.lines, "\n"); strings.Contains(all, "s3cr3t") || strings.Count(all, "***") != 7 ||
		!strings.Contains(all, "n:7") {
		t.Errorf("logged %s", all)
	}
	if !errors.Is(log.errs[0], secret) || log.errs[1] != nil || log.errs[2] != plain {
		t.Errorf("logged %v", log.errs)
	}
	if fields["err"] != secret {
		t.Error("the fields of the caller were changed")
	}
	if RedactingLogger(nil) != (watermill.NopLogger{}) {
		t.Error("nil logs something")
	}
}
