// Package ui is a web page for package admin: it shows whether messages are published, which fail and why, and lets an
// operator repair them.
//
//	page, err := ui.New(db, ui.Config{Authorize: authorize}, logger)
//	mux.Handle("/outbox/", page)
//	err = outbox.Run(ctx, server, page) // page.Run samples the charts without an open browser
//
// # Paths
//
// A Handler works under any prefix, stripped or not, also behind a proxy that changes it: it looks only at the path
// after the last slash, and its links are relative. The prefix ends in a slash.
//
//	(nothing)   the overview: findings, rate, lag and backlog, topics, forwarders
//	errors      dead and failing messages in groups
//	messages    lists with filters
//	message     one message, with its payload if Access.Payloads
//	find        messages of all tables by UUID, id or key
//	audit       the acts: actor, change and reason
//	act         a GET, or a POST without "sure", asks for confirmation; a POST with it acts
//	health      for monitoring: ok or warning with 200, critical or unavailable with 503, as Admin.Doctor judges
//	ready       for probes: 200 if the database responds, else 503
//
// health and ready do not call Authorize, log nothing and show nothing else.
//
// # Access
//
// Without Config.Authorize every client that reaches the Handler has read access, without payloads and acts. Put it
// behind the authentication of your other internal pages. Authorize is called first on each request, except for health,
// ready, the style sheet, the script and the icon.
//
// A POST must come from the page itself: net/http.CrossOriginProtection checks the browser's origin headers, and a
// token in the form must match a cookie that other sites can neither read nor send. The page uses only its own script
// and style sheet, and its Content-Security-Policy allows no other; pages are never cached. Message data is escaped,
// and invisible and bidirectional control characters are shown as numbers.
//
// # How it works
//
// Pages are rendered on the server, and work without JavaScript. With it, the overview refreshes every few seconds
// while its tab is in front, and confirmations open in a dialog.
//
// The heading and the list below it are the findings of Admin.Doctor, at most 10 s old, as outboxctl doctor and
// outboxctl check report them; critical findings make health critical. Figures come from Admin.Stats, read at most once
// a second for all viewers. The chart of written and published messages is read from the tables; the other charts show
// the last hour as this process sampled it. An act changes the messages that its question counted and that still match.
// If there are more than 10,000, or counting took too long, it changes 10,000 of those written before, and can be
// repeated.
package ui
