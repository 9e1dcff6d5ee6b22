// Package ui is a web page for package admin: it shows whether messages are published, which fail and why, and lets an
// operator repair them.
//
//	page, err := ui.New(a, ui.Config{Authorize: authorize}, logger)
//	mux.Handle("/outbox/", page)
//	err = outbox.Run(ctx, server, page) // page.Run samples the charts without an open browser
//
// # Where it is
//
// A Handler works under any prefix, stripped or not, also behind a proxy that changes it: it looks at what is behind
// the last slash of the path, and its links are relative. The prefix ends in a slash.
//
//	(nothing)   the overview: what needs attention, rate, lag and backlog, topics, forwarders
//	errors      dead and failing messages in groups
//	messages    lists with filters
//	message     one message, with its payload if Access.Payloads
//	find        messages of all tables by UUID, id or key
//	audit       the acts: actor, change and reason
//	act         a GET, or a POST without "sure", asks; a POST with it does
//	health      for monitoring: ok or warning with 200, critical or unavailable with 503, as Admin.Doctor judges
//	ready       for probes: 200 if the database answers, else 503
//
// The last two ask no Authorize, log nothing and tell nothing else.
//
// # Access
//
// Without Config.Authorize every client that reaches the Handler may look, and none may act or see payloads. Put it
// behind what guards your other internal pages. Authorize is asked on each request but those for health, ready and the
// style, script and icon, before anything else.
//
// A POST must come from the page itself: net/http.CrossOriginProtection looks at what the browser says of its origin,
// and a token in the form must be that of a cookie which other sites can neither read nor send. There is no script and
// no style but the two files that come from the Handler, and its Content-Security-Policy allows no other; pages are
// never cached. Whatever comes from messages is escaped, and characters that show nothing or turn the text around are
// shown by their numbers.
//
// # How it works
//
// Pages are made on the server, and work without JavaScript. With it, the overview is refreshed every few seconds while
// its tab is in front, and questions are asked in a dialog.
//
// The heading and what is listed below it are what Admin.Doctor finds, at most 10 s ago; with critical findings health
// is critical. outboxctl doctor and outboxctl check say the same. Figures are those of Admin.Stats, read at most once a
// second for all viewers. What was written and published is drawn from the rows; the other charts are from what this
// process has seen, an hour of it. An act changes the messages that were counted when it was asked for and that are
// still there. Where there are more than 10,000, or counting took too long, it changes 10,000 of those that were
// written before, and is done again.
package ui
