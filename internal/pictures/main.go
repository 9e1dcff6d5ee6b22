// Pictures draws the pictures of the documents: go run ./internal/pictures docs
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: pictures FOLDER")
		os.Exit(2)
	}
	for name, svg := range pictures() {
		if err := os.WriteFile(filepath.Join(os.Args[1], name), []byte(svg), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func pictures() map[string]string {
	return map[string]string{
		"way.svg": way(), "lanes.svg": lanes(), "published.svg": published(), "handled.svg": handled(),
	}
}

// drawing is an SVG picture that fits a light page and a dark one.
type drawing struct {
	width, height int
	body          strings.Builder
}

const style = `<style>
text{font:14px system-ui,sans-serif;fill:#1f2933}.small{font-size:12px;fill:#52606d}.mid{text-anchor:middle}.bold{font-weight:600}
.box{fill:#fff;stroke:#9aa5b1}.ours{fill:#e3f2ec;stroke:#2f8f6b}.tx{fill:none;stroke:#2f8f6b;stroke-dasharray:5 4;stroke-width:1.5}.gone{fill:#f5f0e6;stroke:#b7791f;stroke-dasharray:3 3}
.line{fill:none;stroke:#52606d;stroke-width:1.5}.head{fill:#52606d}
@media (prefers-color-scheme:dark){text{fill:#e4e7eb}.small{fill:#9aa5b1}.box{fill:#1f2933;stroke:#616e7c}.ours{fill:#14352a;stroke:#3fb98a}.tx{stroke:#3fb98a}.gone{fill:#3b2f16;stroke:#d69e2e}.line{stroke:#9aa5b1}.head{fill:#9aa5b1}}
</style><defs><marker id="head" markerWidth="9" markerHeight="9" refX="8" refY="4.5" orient="auto"><path class="head" d="M0,0 L9,4.5 L0,9 z"/></marker></defs>
`

func (d *drawing) box(class string, x, y, w, h int, title string, lines ...string) {
	fmt.Fprintf(&d.body, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="6"/>`+"\n", class, x, y, w, h)
	if title != "" {
		d.text("mid bold", x+w/2, y+21, title)
	}
	for i, line := range lines {
		d.text("mid small", x+w/2, y+40+16*i, line)
	}
}

func (d *drawing) text(class string, x, y int, s string) {
	fmt.Fprintf(&d.body, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", class, x, y, s)
}

// arrow goes through points given as x, y, x, y, ...
func (d *drawing) arrow(points ...int) {
	path := "M"
	for i := 0; i < len(points); i += 2 {
		path += fmt.Sprintf(" %d,%d", points[i], points[i+1])
	}
	fmt.Fprintf(&d.body, `<path class="line" d="%s" marker-end="url(#head)"/>`+"\n", path)
}

func (d *drawing) svg(title string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" `+
		`role="img"><title>%s</title>`+"\n%s%s</svg>\n",
		d.width, d.height, d.width, d.height, title, style, d.body.String())
}

// way is the way of a message through a service.
func way() string {
	d := &drawing{width: 880, height: 270}
	d.box("box", 10, 90, 110, 80, "broker", "topic orders")
	d.arrow(120, 120, 178, 120)
	d.text("mid small", 149, 112, "deliver")
	d.arrow(178, 150, 122, 150)
	d.text("mid small", 149, 166, "ack last")

	d.box("box", 180, 20, 390, 230, "Watermill Router")
	d.text("small", 192, 62, "Outcomes: ack, nack or dead letter")
	d.box("tx", 192, 74, 366, 164, "")
	d.text("small", 204, 93, "Tx: one transaction, and its COMMIT")
	d.box("ours", 204, 106, 100, 118, "Inbox", "seen before?", "then stop here", "and ack")
	d.box("box", 316, 106, 110, 118, "your handler", "writes its rows", "returns events")
	d.box("ours", 438, 106, 108, 118, "Outbox", "events become", "rows, written", "with COMMIT")
	d.arrow(304, 150, 314, 150)
	d.arrow(426, 150, 436, 150)

	d.arrow(558, 150, 626, 150)
	d.text("mid small", 598, 142, "commit")
	d.box("ours", 628, 100, 112, 96, "forwarder", "reads in order", "per key, sends,", "settles")
	d.arrow(740, 148, 768, 148)
	d.box("box", 770, 108, 100, 80, "broker", "topic bookings")
	d.text("mid small", 684, 216, "after a crash: again,")
	d.text("mid small", 684, 232, "under the same UUID")
	return d.svg("The way of a message: the note that it was handled, the handler's writes and its events are one " +
		"transaction; a forwarder publishes the events after the commit")
}

// lanes is which forwarder reads which rows.
func lanes() string {
	d := &drawing{width: 860, height: 260}
	d.box("box", 10, 30, 150, 190, "table outbox", "id 41  key acme", "id 42  key zeta", "id 43  key acme",
		"id 44  no key", "id 45  key omega")
	d.text("mid small", 200, 66, "hash of")
	d.text("mid small", 200, 82, "the key")
	owners := []string{"ours", "ours", "ours", "gone", "gone"}
	for i, lane := range []string{"lane 0: 41, 43", "lane 1: 44", "...", "lane 62: 42", "lane 63: 45"} {
		y := 26 + 40*i
		d.box(owners[i], 265, y, 150, 30, lane)
		d.arrow(160, 121, 215, 121, 262, y+15)
	}
	d.box("ours", 560, 30, 280, 84, "forwarder A", "lease renewed every few seconds", "owns lanes 0 to 61 under epoch 7")
	d.box("gone", 560, 136, 280, 84, "forwarder B, killed", "lease ends after LeaseTTL, then A takes",
		"its lanes under epoch 8: what B still reports", "under 7 as failed is refused")
	d.arrow(558, 62, 417, 41)
	d.arrow(558, 72, 417, 81)
	d.arrow(558, 82, 417, 121)
	d.arrow(558, 172, 417, 161)
	d.arrow(558, 182, 417, 201)
	d.text("mid small", 430, 248, "A lane has one owner at a time, so the messages of a key leave in order "+
		"however many forwarders run.")
	return d.svg("Lanes and leases: each key has one of 64 lanes, each lane one owner with a lease, " +
		"and a lane that changes hands gets a higher epoch")
}
