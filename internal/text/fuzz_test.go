package text

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzOfError: the text of any error can be stored, and redacting it twice is the same as once.
func FuzzOfError(f *testing.F) {
	for _, s := range []string{
		"", "\x00\xff", "dial postgres://ann:s3cr3t@db/x: refused", `PASSWORD = 's3cr3t \' x' user=u`,
		`{"api_key": "s3cr3t"}`, "Bearer s3cr3t==", strings.Repeat("é", MaxErrorBytes),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := OfError(errors.New(s))
		if !Storable(got) || len(got) > MaxErrorBytes {
			t.Errorf("%q is redacted to %q", s, got)
		}
		if once := Redact(s); Redact(once) != once {
			t.Errorf("%q is redacted to %q, and then to %q", s, once, Redact(once))
		}
		if short := WithoutQuotes(errors.New(s)); !utf8.ValidString(short) {
			t.Errorf("%q is redacted to %q", s, short)
		}
	})
}

// FuzzRedactPasswords: an error that quotes a URL or a connection string shows no part of its password.
func FuzzRedactPasswords(f *testing.F) {
	for _, s := range []string{"s3cr3t", "s3:cr/3t", "s3@cr3t", `s3'cr\3t`, "s3 cr3t", "sécr%3t"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		const left, right = "canary1", "canary2" // both ends must be gone
		if !utf8.ValidString(s) || strings.Contains(s, "canary") {
			return
		}
		password := left + s + right
		u := url.URL{Scheme: "postgres", User: url.UserPassword("ann", password), Host: "db:5432", Path: "/x"}
		quoted := `'` + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password) + `'`
		texts := []string{u.String(), "host=db password=" + quoted + " user=ann"}
		if raw, err := url.Parse("postgres://ann:" + password + "@db:5432/x"); err == nil {
			if got, _ := raw.User.Password(); strings.HasSuffix(got, right) { // the URL is parsed as intended
				texts = append(texts, "postgres://ann:"+password+"@db:5432/x")
			}
		}
		for _, text := range texts {
			got := Redact("dial " + text + ": connection refused")
			if strings.Contains(got, left) || strings.Contains(got, right) || !strings.Contains(got, "connection refused") {
				t.Errorf("%q is redacted to %q", text, got)
			}
		}
	})
}
