package main

// handled is the way of a message from Enqueue to Ack.
func handled() string {
	d := &drawing{width: 880, height: 400}
	d.text("bold", 12, 24, "what stores")
	d.box("box", 10, 36, 130, 54, "webhook", "verified, then 200")
	d.box("box", 10, 100, 130, 54, "Ingest", "then acks the broker")
	d.box("box", 10, 164, 130, 54, "your code, SQL", "in its transaction")
	d.box("ours", 170, 92, 110, 70, "Enqueue", "under the ID of", "its sender")
	d.arrow(140, 63, 155, 63, 155, 115, 168, 115)
	d.arrow(140, 127, 168, 127)
	d.arrow(140, 191, 155, 191, 155, 140, 168, 140)

	d.text("bold", 320, 24, "PostgreSQL")
	d.box("box", 320, 36, 150, 330, "table inbox_queue")
	d.box("box", 332, 86, 126, 64, "processing", "no owner", "due now or later")
	d.box("ours", 332, 170, 126, 64, "processing", "owner, locked_until:", "under a lease")
	d.box("box", 332, 254, 126, 46, "done", "kept for Retention")
	d.box("gone", 332, 310, 126, 46, "dead", "until requeued")
	d.arrow(280, 127, 330, 118)
	d.text("mid small", 225, 180, "a copy: known,")
	d.text("mid small", 225, 196, "changes nothing")

	d.text("bold", 520, 24, "dispatcher")
	d.box("ours", 520, 36, 160, 86, "claimer", "as many as there are", "free places; one at a", "time after a crash")
	d.arrow(458, 108, 490, 108, 490, 79, 518, 79)
	d.arrow(518, 100, 500, 100, 500, 190, 460, 190)
	d.box("tx", 714, 36, 156, 150, "")
	d.text("small", 726, 55, "a handler's transaction")
	d.box("ours", 726, 64, 132, 36, "BEGIN, ack")
	d.box("box", 726, 106, 132, 32, "your handler")
	d.box("ours", 726, 144, 132, 32, "COMMIT")
	d.arrow(680, 79, 712, 79)
	d.box("box", 714, 204, 156, 54, "or detached", "renewed; acked after")
	d.arrow(680, 100, 696, 100, 696, 231, 712, 231)
	d.box("ours", 520, 250, 160, 102, "settle",
		"nil: ack", "error: abandon, later", "Poison, or the last", "attempt: fail")
	d.arrow(792, 258, 792, 300, 682, 300)
	d.arrow(870, 120, 876, 120, 876, 320, 682, 320)
	d.arrow(518, 277, 460, 277)
	d.arrow(518, 333, 460, 333)
	d.arrow(518, 262, 480, 262, 480, 140, 460, 140)
	d.text("mid small", 600, 386, "a lease that runs out gives the message back, charged: no ack of its old owner counts")
	return d.svg("From Enqueue to Ack: a message is stored once under its sender's ID, claimed under a lease, " +
		"and marked done in the " +
		"transaction of its handler")
}
