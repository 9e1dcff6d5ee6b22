// Package observe is what can be seen of an outbox and an inbox at work: small interfaces, whose methods take a context and a
// struct. An Observer implements one or more of them and is given to the handle (outbox.DBConfig.Observers), which
// tells it of everything that is done through that handle: transactions, writes, handled and published messages, the
// forwarder's reads and clean-up.
//
// Methods are called in the goroutine that did the work. They must be safe for concurrent use and should not block. A panic in
// one is caught and logged. Where there is a Start, the context that it returns is the one that End gets. Fields may be
// added to the structs, and interfaces to the package; an interface never gets another method.
package observe
