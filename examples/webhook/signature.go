package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// tolerance is how far the sender's clock may be from ours, either way. An older request may be a recorded one that
// somebody sends again.
const tolerance = 5 * time.Minute

var errSignature = errors.New("the signature is missing, wrong or too old")

// verifier checks signatures of the form that Stripe and others use, in the header Stripe-Signature:
//
//	t=1700000000,v1=hex(HMAC-SHA256(secret, "1700000000." + body)),v1=...
//
// There are several v1 while the sender rotates its secret. One valid signature is enough.
type verifier struct {
	secret []byte
	now    func() time.Time
}

// verify does not reveal why a signature is refused.
func (v verifier) verify(r *http.Request, body []byte) error {
	var timestamp string
	var signatures [][]byte
	for part := range strings.SplitSeq(r.Header.Get("Stripe-Signature"), ",") {
		switch name, value, _ := strings.Cut(strings.TrimSpace(part), "="); name {
		case "t":
			timestamp = value
		case "v1":
			if signature, err := hex.DecodeString(value); err == nil {
				signatures = append(signatures, signature)
			}
		}
	}
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || v.now().Sub(time.Unix(seconds, 0)).Abs() > tolerance {
		return errSignature
	}
	expected := v.sign(timestamp, body)
	right := false
	for _, signature := range signatures {
		right = hmac.Equal(signature, expected) || right // in constant time, and all of them
	}
	if !right {
		return errSignature
	}
	return nil
}

// sign signs the received bytes, not the output of a parser.
func (v verifier) sign(timestamp string, body []byte) []byte {
	mac := hmac.New(sha256.New, v.secret)
	mac.Write([]byte(timestamp + "."))
	mac.Write(body)
	return mac.Sum(nil)
}
