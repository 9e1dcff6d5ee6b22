package ui

import (
	"crypto/rand"
	"crypto/subtle"
	"net/http"
)

const (
	tokenName = "outbox_token"
	maxForm   = 1 << 20
)

var foreign = &problem{
	http.StatusForbidden, "Request refused", "It did not come from this page. Go back, reload the page, and try again. " +
		"Cookies must be enabled, and a proxy must pass on the Host header.",
}

// checkOrigin refuses a POST that another site made a user's browser send.
func (rq *request) checkOrigin() error {
	if rq.origins.Check(rq.r) != nil {
		return foreign
	}
	rq.r.Body = http.MaxBytesReader(rq.w, rq.r.Body, maxForm)
	if rq.r.ParseForm() != nil {
		return &problem{
			http.StatusBadRequest, "Invalid request", "The form is damaged, or larger than 1 MB: select fewer messages.",
		}
	}
	cookie, err := rq.r.Cookie(tokenName)
	if err != nil || len(cookie.Value) < 26 ||
		subtle.ConstantTimeCompare([]byte(cookie.Value), []byte(rq.r.PostForm.Get("token"))) != 1 {
		return foreign
	}
	return nil
}

// token returns the token of forms. It is also in a cookie, so that any process that serves the page can check it. The
// cookie has no path, so it applies to the prefix, wherever a proxy has put it.
func (rq *request) token() (string, error) {
	if !rq.access.Act {
		return "", nil
	}
	if cookie, err := rq.r.Cookie(tokenName); err == nil && len(cookie.Value) >= 26 {
		return cookie.Value, nil
	}
	token := rand.Text()
	http.SetCookie(rq.w, &http.Cookie{
		Name: tokenName, Value: token, HttpOnly: true, Secure: rq.r.TLS != nil, SameSite: http.SameSiteStrictMode,
	})
	return token, nil
}
