package main

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// FuzzSignature: a header is accepted only from a sender who knows the secret and signed this body recently.
func FuzzSignature(f *testing.F) {
	now := time.Unix(1_700_000_000, 0)
	v := verifier{secret: []byte("secret"), now: func() time.Time { return now }}
	good := signature(v, now, "body")
	for _, s := range []string{
		good, "", "t=1700000000", "t=1700000000,v1=", "v1=00,t=+1700000000", "t=9223372036854775807,v1=00", good + ",v1=zz",
		"t=-9223372036854775808,v1=00", "t=1,t=1700000000,v1=" + strings.Repeat("0", 64),
	} {
		f.Add(s, "body")
	}
	f.Fuzz(func(t *testing.T, header, body string) {
		err := v.verify(&http.Request{Header: http.Header{"Stripe-Signature": {header}}}, []byte(body))
		signed := body == "body" && strings.Contains(strings.ToLower(header), good[strings.Index(good, ",v1=")+4:])
		if err == nil && !signed {
			t.Errorf("%q is a signature of %q", header, body)
		}
		r := &http.Request{Header: http.Header{"Stripe-Signature": {signature(v, now, body)}}}
		if v.verify(r, []byte(body)) != nil {
			t.Errorf("the signature of %q is refused", body)
		}
	})
}
