package demo

import (
	"fmt"
	"io"
	"strings"
)

// write prints the tally and reports whether it adds up.
func (t tally) write(out io.Writer) (ok bool) {
	ok = true
	row := func(label string, count int, good bool, remark string) {
		mark := "ok"
		if !good {
			mark, ok = "WRONG", false
		}
		line := fmt.Sprintf("  %-34s %9s   %-6s %s", label, number(count), mark, remark)
		fmt.Fprintln(out, strings.TrimRight(line, " "))
	}
	orders := t.in - t.duplicates
	fmt.Fprintln(out, "\nCounted in the database and on the broker:")
	fmt.Fprintln(out)
	row("orders in", t.in, t.missing == 0, fmt.Sprintf("%s orders, some twice", number(orders))+
		unless(t.missing, "missing on the broker"))
	row("duplicates absorbed", t.in-t.booked, t.in-t.booked == t.duplicates, "")
	row("booked", t.booked, t.unbooked == 0 && t.rebooked == 0 && t.booked == orders && t.cents == t.wantCents,
		"rows in the database"+unless(t.unbooked, "orders not booked")+unless(t.rebooked, "booked again")+
			unless(int(t.cents-t.wantCents), "cents too many on the accounts"))
	row("events published", t.published, t.published == t.booked && t.left == 0,
		"rows in the outbox"+unless(t.left, "not published"))
	row("events on the broker", t.events, t.events == t.booked && t.invented == 0,
		fmt.Sprintf("and %s sent twice, with the same UUID", number(t.again))+unless(t.invented, "without a booking"))
	row("lost", t.lost, t.lost == 0, "")
	row("doubled after dedup", t.doubled, t.doubled == 0, "")
	row("out of order in their account", t.disordered, t.disordered == 0, "")
	fmt.Fprintln(out)
	if ok {
		fmt.Fprintln(out, "It adds up.")
	} else {
		fmt.Fprintln(out, "IT DOES NOT ADD UP.")
	}
	return ok
}

func unless(n int, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %s %s", number(n), what)
}
