// Package ui is a web page for package admin: it shows whether messages are published, which fail and why, and lets an
// operator repair them.
//
//	page, err := ui.New(db, ui.Config{Authorize: authorize}, logger)
//	mux.Handle("/outbox/", page)
//	err = outbox.Run(ctx, server, page) // page.Run samples the charts without an open browser
//
// # Paths
//
// A Handler works under any prefix that ends in a slash, stripped or not, even behind a proxy that changes it: its
// links are relative. It also serves health (200 for ok or warning, 503 for critical or unavailable, as Admin.Doctor
// judges) and ready (200 if the database responds, otherwise 503), which do not call Authorize and log nothing.
//
// # Access
//
// Without Config.Authorize every client that reaches the Handler has read access, without payloads and acts. Put it
// behind your authentication. Authorize is called first on each request, except for health, ready, the style sheet, the
// script and the icon.
//
// A POST must come from the page itself: net/http.CrossOriginProtection checks the browser's origin headers, and a
// token in the form must match a cookie that other sites can neither read nor send. The Content-Security-Policy allows
// only the page's own script and style sheet; pages are never cached. Message data is escaped, and invisible and
// bidirectional control characters are shown as numbers.
//
// # How it works
//
// Pages work without JavaScript. With it, the overview refreshes every few seconds, and confirmations open in a dialog.
//
// All viewers share findings of Admin.Doctor, at most 10 s old, and figures of Admin.Stats, at most 1 s old. Most
// charts show the last hour as this process sampled it. An act changes the messages that its confirmation counted and
// that still match, or 10,000 of them if there are more, and can be repeated.
package ui
