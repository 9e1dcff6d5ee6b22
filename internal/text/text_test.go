package text

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestErrorTextCanBeStored(t *testing.T) {
	for _, s := range []string{
		"plain", "", "nul \x00 in it", "bad \xff utf-8", strings.Repeat("x", 5000), strings.Repeat("ä", 5000),
		strings.Repeat("\x00", 5000),
	} {
		got := OfError(errors.New(s))
		if len(got) > 1024 || !utf8.ValidString(got) || strings.Contains(got, "\x00") {
			t.Errorf("%.20q is stored as %d bytes, %.40q", s, len(got), got)
		}
		if len(s) > 1024 && len(got) < 1000 {
			t.Errorf("%.20q was cut to %d bytes", s, len(got))
		}
	}
	if got := OfError(errors.New("plain")); got != "plain" {
		t.Errorf("a plain text is stored as %q", got)
	}
}

type rude struct{}

func (rude) Error() string { panic("no text") }

func TestTheTextOfAnErrorMayPanic(t *testing.T) {
	if got := OfError(rude{}); !strings.Contains(got, "text.rude") {
		t.Errorf("got %q", got)
	}
}

type state string

func (s state) Error() string    { return "failed" }
func (s state) SQLState() string { return string(s) }

func TestErrorsOfTheDatabaseNameTheirCure(t *testing.T) {
	for code, cure := range map[state]string{
		"42P01": "schema.Migrate", "42501": "GRANT", "25006": "target_session_attrs",
	} {
		if err := Explain(code); !strings.Contains(err.Error(), cure) || !errors.Is(err, code) {
			t.Errorf("%s: %v", code, err)
		}
	}
	if err := Explain(state("23505")); err != state("23505") {
		t.Errorf("it is now %v", err)
	}
}
